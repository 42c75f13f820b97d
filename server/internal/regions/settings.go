package regions

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/shivad/shivad/server/internal/audit"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/identity"
)

// Settings determine what may be registered, and by which clients.
type Settings struct {
	Directory   string   // of the files; "": nothing may be registered
	Owners      []uint32 // users whose files may be registered; nil: all
	RegionBytes int64    // largest region
	Regions     int      // most regions at one time
	AllClients  bool     // also clients on other machines, by their address
	Identities  []string // names of the declared identities; empty: none are declared
}

// owns reports whether files of a user may be registered.
func (s *Settings) owns(uid uint32) bool { return s.Owners == nil || slices.Contains(s.Owners, uid) }

// entitled reports whether an identity is declared. If none are, all clients have the name "".
func (s *Settings) entitled(identity string) bool {
	return len(s.Identities) == 0 && identity == "" || slices.Contains(s.Identities, identity)
}

// A Client registers and uses regions.
type Client struct {
	Address string             // as gate.ClientOf returns it
	Who     *identity.Identity // nil: no identities are declared
	Source  audit.Source       // the same client, for the trail
}

// id qualifies a name with the client's identity.
func (c Client) id(name string) regionID { return regionID{c.Who.Name(), name} }

// permit returns an error if a client may not use regions.
func (g *Registry) permit(c Client) error {
	if err := c.Who.CheckAny(identity.Infer); err != nil {
		return err
	}
	return g.reaches(c)
}

// reaches returns an error if clients on that machine may not use regions. A client on a Unix
// socket, which has no IP address, is on this machine.
func (g *Registry) reaches(c Client) error {
	s := g.settings.Load()
	if s.Directory == "" {
		return errOff
	}
	addr, err := netip.ParseAddr(c.Address)
	if _, network := netip.ParsePrefix(c.Address); s.AllClients || err != nil && network != nil || addr.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: shared memory is only for clients on this machine, and %s is another machine; shared_memory.clients = \"all\" allows all clients",
		gate.ErrPermissionDenied, c.Address)
}
