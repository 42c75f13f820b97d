package regions

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shivad/shivad/server/internal/gate"
)

// Settings are what clients may register, and which clients.
type Settings struct {
	Directory   string   // where the files are; "": nothing may be registered
	Owners      []uint32 // users whose files may be; nil: all
	RegionBytes int64    // largest region
	Regions     int      // most that are registered at one time
	AllClients  bool     // also clients whose address is not this machine's own
}

// owns reports whether files of a user may be registered.
func (s *Settings) owns(uid uint32) bool { return s.Owners == nil || slices.Contains(s.Owners, uid) }

// permit is the error for a client, named as by [gate.ClientOf], that may not use regions. That of
// a Unix socket has no IP address.
func (g *Registry) permit(client string) error {
	s := g.settings.Load()
	if s.Directory == "" {
		return errOff
	}
	addr, err := netip.ParseAddr(client)
	if _, network := netip.ParsePrefix(client); s.AllClients || err != nil && network != nil || addr.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: shared memory is for clients on this machine, and %s is another; shared_memory.clients = \"all\" lets every client use it",
		gate.ErrPermissionDenied, client)
}
