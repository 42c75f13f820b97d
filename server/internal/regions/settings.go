package regions

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
)

// Settings determine what may be registered, and by which clients.
type Settings struct {
	Directory   string   // of the files; "": nothing may be registered
	Owners      []uint32 // users whose files may be registered; nil: all
	RegionBytes int64    // largest region
	Regions     int      // most regions at one time
	AllClients  bool     // also clients on other machines, by their address
	Declared    bool     // whether there are identities
	// Identities are those that may have regions, with patterns of the keys that are theirs.
	Identities map[string][]string
}

// owns reports whether files of a user may be registered.
func (s *Settings) owns(uid uint32) bool { return s.Owners == nil || slices.Contains(s.Owners, uid) }

// entitled reports whether an identity is declared. If none are, all clients have the name "".
func (s *Settings) entitled(identity string) bool {
	_, known := s.Identities[identity]
	return known || !s.Declared && identity == ""
}

// A claim is what makes a file a client's.
type claim struct {
	identity, key string
	user          uint32 // on the other end of a Unix socket
	local         bool   // whether there is one
}

// claims returns what c claims with a key.
func (c Client) claims(key string) claim {
	m := claim{identity: c.Who.Name(), key: strings.TrimPrefix(key, "/")}
	if text, ok := strings.CutPrefix(c.Address, "uid="); ok {
		n, err := strconv.ParseUint(text, 10, 32)
		m.user, m.local = uint32(n), err == nil
	}
	return m
}

// belongs reports whether a file of that owner and mode belongs to a client, and whether the client
// may have the server write to it. It belongs to whoever may open it: the user on a Unix socket, as
// its owner or like everybody; and to an identity that its key is declared for. Other clients are
// told apart by nothing but their identity, so if there are several, it belongs to none of them.
func (s *Settings) belongs(m claim, owner, mode uint32) (reads, writes bool) {
	patterns := s.Identities[m.identity]
	for _, p := range patterns {
		if ok, _ := path.Match(strings.TrimPrefix(p, "/"), m.key); ok {
			return true, true
		}
	}
	if !m.local {
		alone := len(patterns) == 0 && len(s.Identities) < 2
		return alone, alone
	}
	switch {
	case m.user == 0:
		return true, true
	case m.user == owner:
		mode >>= 6
	}
	return mode&4 != 0, mode&6 == 6
}

// A Client registers and uses regions.
type Client struct {
	Address string           // as gate.ClientOf returns it
	Who     *access.Identity // nil: no identities are declared
	Source  access.Source    // the same client, for the trail
}

// id qualifies a name with the client's identity.
func (c Client) id(name string) regionID { return regionID{c.Who.Name(), name} }

// permit returns an error if a client may not use regions.
func (g *Registry) permit(c Client) error {
	if err := c.Who.CheckAny(access.Infer); err != nil {
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
		fault.ErrPermissionDenied, c.Address)
}
