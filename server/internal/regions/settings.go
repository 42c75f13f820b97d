package regions

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shivad/shivad/server/internal/audit"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/identity"
)

// Settings are what clients may register, and which clients.
type Settings struct {
	Directory   string   // where the files are; "": nothing may be registered
	Owners      []uint32 // users whose files may be; nil: all
	RegionBytes int64    // largest region
	Regions     int      // most that are registered at one time
	AllClients  bool     // also clients whose address is not this machine's own
	Identities  []string // that are declared, by their names; none: whoever asks may
}

// owns reports whether files of a user may be registered.
func (s *Settings) owns(uid uint32) bool { return s.Owners == nil || slices.Contains(s.Owners, uid) }

// entitled reports whether there is such an identity; without any, everybody's name is "".
func (s *Settings) entitled(identity string) bool {
	return len(s.Identities) == 0 && identity == "" || slices.Contains(s.Identities, identity)
}

// A Client is who registers and uses regions.
type Client struct {
	Address string             // as gate.ClientOf has it
	Who     *identity.Identity // nil: nobody is declared
	Source  audit.Source       // the same, for the trail
}

// owned is a name of the client's.
func (c Client) owned(name string) owned { return owned{c.Who.Name(), name} }

// permit is the error for a client that may not use regions.
func (g *Registry) permit(c Client) error {
	if err := c.Who.CheckAny(identity.Infer); err != nil {
		return err
	}
	return g.reaches(c)
}

// reaches is the error for a client on a machine whose clients may not use regions. That of a Unix
// socket has no IP address.
func (g *Registry) reaches(c Client) error {
	s := g.settings.Load()
	if s.Directory == "" {
		return errOff
	}
	addr, err := netip.ParseAddr(c.Address)
	if _, network := netip.ParsePrefix(c.Address); s.AllClients || err != nil && network != nil || addr.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: shared memory is for clients on this machine, and %s is another; shared_memory.clients = \"all\" lets every client use it",
		gate.ErrPermissionDenied, c.Address)
}
