package regions

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/tensor"
)

// Extension is the name of the extension in a server's metadata.
const Extension = "system_shared_memory"

// maxName is the longest name of a region, in bytes.
const maxName = 256

// A Region is a region as its client has registered it, with the field names of Triton's status.
type Region struct {
	Name   string `json:"name"`
	Key    string `json:"key"`       // of shm_open: "/x" is the file x in the directory
	Offset int64  `json:"offset"`    // in the file
	Size   int64  `json:"byte_size"` // from the offset
	// Identity is the owner, if it is not the identity that asks; "" if none are declared.
	Identity string `json:"identity,omitempty"`
}

// A Registry holds the regions of a server. Make one with New.
type Registry struct {
	Trail *access.Trail // records registrations; nil: no record. Set before the first use

	settings atomic.Pointer[Settings]
	copying  chan struct{} // one element for each copy under way
	pages    *accounts
	refused  [refusals]atomic.Uint64

	open atomic.Int64 // files: those of regions, and those that only requests use any more

	mu      sync.RWMutex
	regions map[regionID]*file
}

// A regionID identifies a region. Each identity has its own names, and neither uses nor sees
// those of other identities.
type regionID struct{ identity, name string }

func (o regionID) compare(other regionID) int {
	return cmp.Or(cmp.Compare(o.name, other.name), cmp.Compare(o.identity, other.identity))
}

// New makes an empty registry. Memory that the server takes in clients' files counts in the pool.
func New(s Settings, pool *tensor.Pool) *Registry {
	// One copy per processor at a time: each occupies a thread while it lasts.
	g := &Registry{regions: make(map[regionID]*file), copying: make(chan struct{}, capacity.Processors()),
		pages: newAccounts(pool)}
	g.settings.Store(&s)
	return g
}

// Off is the refusal of a server without shared memory.
const Off = "shared memory is not offered: shared_memory.directory is not set; send the tensors in the message"

var errOff = fmt.Errorf("%w: %s", scheduler.ErrInvalidInput, Off)

// IsOff reports whether err is the refusal of a server without shared memory.
func IsOff(err error) bool { return errors.Is(err, errOff) }

// Offered reports whether clients may register regions.
func (g *Registry) Offered() bool { return g.settings.Load().Directory != "" }

// Settings returns the current settings.
func (g *Registry) Settings() Settings { return *g.settings.Load() }

// Configure replaces the settings, and drops the regions that they no longer permit. A lower number
// of regions applies only to new ones.
func (g *Registry) Configure(s Settings) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings.Store(&s)
	for name, f := range g.regions {
		if f.directory != s.Directory || f.Size > s.RegionBytes || !s.owns(f.owner) || !s.entitled(name.identity) {
			g.drop(name)
		} else if reads, writes := s.belongs(f.claim, f.owner, f.mode); !reads || !writes && !f.readOnly {
			g.drop(name)
		}
	}
}

// drop takes a region's name away. Its file stays open for requests that use it. The caller holds
// mu.
func (g *Registry) drop(name regionID) {
	g.release(g.regions[name])
	delete(g.regions, name)
}

// release ends a use of a file, and closes it after the last.
func (g *Registry) release(f *file) {
	if f.uses.Add(-1) == 0 {
		f.data.Close()
		g.open.Add(-1)
	}
}

// Register makes a part of a file a region of the client's identity. The name must be free, and the
// file must belong to the client (see Settings.belongs): otherwise any client that guesses the
// file's name could read it.
func (g *Registry) Register(client Client, r Region) error { return g.RegisterFor(client, r, nil) }

// RegisterFor is Register for a region that Disconnected drops when its connection ends.
func (g *Registry) RegisterFor(client Client, r Region, connection any) error {
	err := g.register(client, r, connection)
	if err != nil {
		g.refused[reasonOf(err)].Add(1)
	}
	g.audit(client, "register", r.Name, r, err)
	return err
}

func (g *Registry) register(client Client, r Region, connection any) error {
	if err := g.permit(client); err != nil {
		return err
	}
	s := g.settings.Load()
	switch {
	case r.Name == "" || len(r.Name) > maxName:
		return fault.Invalid("a region's name has %d bytes, expected 1 to %d", len(r.Name), maxName)
	case r.Offset < 0 || r.Size <= 0:
		return fault.Invalid("failed to register shared memory region '%s': invalid args: expected an offset of 0 or more and a byte_size of 1 or more, got %d and %d",
			r.Name, r.Offset, r.Size)
	case r.Size > s.RegionBytes:
		return fmt.Errorf("%w: failed to register shared memory region '%s': invalid args: byte_size is %d, the limit (shared_memory.region_bytes) is %d",
			scheduler.ErrTooLarge, r.Name, r.Size, s.RegionBytes)
	}
	name := client.id(r.Name)
	if !s.entitled(name.identity) { // removed by a reload since the identity was looked up
		return fmt.Errorf("%w: identity %q is not declared any more", fault.ErrUnauthenticated, name.identity)
	}
	if err := g.room(name, s); err != nil { // before a file is opened
		return err
	}
	f, err := open(r, client.claims(r.Key), s)
	if err != nil {
		return err
	}
	f.connection = connection
	g.mu.Lock()
	defer g.mu.Unlock()
	if err = g.admit(name, s); err == nil && g.settings.Load() != s {
		err = fmt.Errorf("%w: the settings of [shared_memory] have just changed; try again", scheduler.ErrUnavailable)
	}
	if err != nil {
		f.data.Close()
		return err
	}
	f.uses.Store(1)
	g.open.Add(1)
	g.regions[name] = f
	return nil
}

func (g *Registry) room(name regionID, s *Settings) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admit(name, s)
}

// admit returns an error if no region of that name can be added. The caller holds mu.
func (g *Registry) admit(name regionID, s *Settings) error {
	if g.regions[name] != nil {
		return fault.Invalid("shared memory region '%s' already in manager; unregister it first", name.name)
	}
	if g.open.Load() >= int64(s.Regions) {
		g.forget()
	}
	if n := g.open.Load(); n >= int64(s.Regions) {
		return fmt.Errorf("%w: failed to register shared memory region '%s': %d are registered or used by requests in flight, the limit (shared_memory.regions) is %d: unregister regions that are no longer used",
			scheduler.ErrOverloaded, name.name, n, s.Regions)
	}
	return nil
}

// Disconnected unregisters the regions that were registered for a connection that has ended.
func (g *Registry) Disconnected(connection any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, f := range g.regions {
		if f.connection == connection {
			g.drop(name)
		}
	}
}

// forgetAfter is how long a region whose file was removed must be unused before forget drops it.
const forgetAfter = time.Minute

// forget drops regions whose clients have ended without unregistering them: their files are removed
// and unused. Otherwise they would fill the registry forever, and their memory is not freed while
// the files are open. Regions tied to a connection end with it. The caller holds mu.
func (g *Registry) forget() {
	for name, f := range g.regions {
		if f.connection == nil && time.Since(time.Unix(0, f.used.Load())) > forgetAfter && f.removed() {
			g.drop(name)
		}
	}
}

// Unregister takes the name of a region of the client's identity away, or those of all if the name
// is empty. Requests that have been accepted still use the regions. It is not an error if there is
// none.
func (g *Registry) Unregister(client Client, name string) error {
	dropped, err := g.unregister(client, name)
	if err != nil || len(dropped) > 0 {
		g.audit(client, "unregister", name, dropped, err)
	}
	return err
}

func (g *Registry) unregister(client Client, name string) (dropped []string, err error) {
	if err := g.permit(client); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	mine := client.id(name)
	for one := range g.regions {
		if one.identity == mine.identity && (name == "" || one == mine) {
			g.drop(one)
			dropped = append(dropped, one.name)
		}
	}
	return dropped, nil
}

// audit records an action of a client, or its refusal for lack of a right.
func (g *Registry) audit(client Client, action, name string, after any, err error) {
	e := access.Entry{Source: client.Source, Action: action, What: "region", Name: name}
	switch {
	case err == nil:
		e.After = access.AuditText(after)
	case errors.Is(err, fault.ErrPermissionDenied) || errors.Is(err, fault.ErrUnauthenticated):
		e.Refused, e.Error = true, fault.Text(err)
	default:
		return // nothing has changed
	}
	g.Trail.Add(e)
}

// Watch has f called, without locks, each time that Made may have changed.
func (g *Registry) Watch(f func()) { g.pages.changed.Store(&f) }

// Made returns the memory that the server has taken in files by writing outputs there.
func (g *Registry) Made() int64 { return g.pages.charged() }

// Close removes all regions. No request uses one any more.
func (g *Registry) Close() {
	g.pages.close()
	s := g.Settings()
	s.Directory = ""
	g.Configure(s)
}

// Status lists the regions of the client's identity, or only the one of that name, sorted by name.
// With the right admin:read it lists those of all identities.
func (g *Registry) Status(client Client, name string) ([]Region, error) {
	all := client.Who.May(access.AdminRead, "")
	err := g.reaches(client)
	if !all && err == nil {
		err = g.permit(client)
	}
	if err != nil {
		return nil, err
	}
	mine := client.id(name)
	g.mu.RLock()
	defer g.mu.RUnlock()
	list := []Region{}
	for _, one := range slices.SortedFunc(maps.Keys(g.regions), regionID.compare) {
		if (name == "" || one.name == name) && (all || one.identity == mine.identity) {
			r := g.regions[one].Region
			if one.identity != mine.identity {
				r.Identity = one.identity
			}
			list = append(list, r)
		}
	}
	if name != "" && len(list) == 0 {
		return nil, fmt.Errorf("%w: Unable to find system shared memory region: '%s'", scheduler.ErrNotFound, name)
	}
	return list, nil
}
