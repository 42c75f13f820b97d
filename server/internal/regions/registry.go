package regions

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
)

// Extension is the name under which servers announce it.
const Extension = "system_shared_memory"

// maxName is the longest name of a region, in bytes.
const maxName = 256

// A Region is what a client has registered, in the words of Triton's status.
type Region struct {
	Name   string `json:"name"`
	Key    string `json:"key"`       // of shm_open: "/x" is the file x in the directory
	Offset int64  `json:"offset"`    // in the file
	Size   int64  `json:"byte_size"` // from there
}

// A Registry has the regions of a server. Make one with New.
type Registry struct {
	settings atomic.Pointer[Settings]
	turns    chan struct{} // one element for each copy that goes on
	refused  [refusals]atomic.Uint64

	mu      sync.RWMutex
	regions map[string]*file
}

// New makes an empty registry.
func New(s Settings) *Registry {
	// As many copies as there are processors: each has a thread of its own while it lasts.
	g := &Registry{regions: make(map[string]*file), turns: make(chan struct{}, runtime.GOMAXPROCS(0))}
	g.settings.Store(&s)
	return g
}

// Off tells clients of a server without shared memory.
const Off = "shared memory is not offered: shared_memory.directory is not set; send the tensors in the message"

var errOff = fmt.Errorf("%w: %s", scheduler.ErrInvalidInput, Off)

// IsOff reports whether err is that of a server without shared memory.
func IsOff(err error) bool { return errors.Is(err, errOff) }

// Offered reports whether clients may register regions.
func (g *Registry) Offered() bool { return g.settings.Load().Directory != "" }

// Settings returns the current ones.
func (g *Registry) Settings() Settings { return *g.settings.Load() }

// Configure changes the settings, and unregisters what could not be registered by them. How many
// there may be holds for the next one.
func (g *Registry) Configure(s Settings) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings.Store(&s)
	for name, f := range g.regions {
		if f.directory != s.Directory || f.Size > s.RegionBytes || !s.owns(f.owner) {
			g.drop(name)
		}
	}
}

// drop forgets a region. The file is closed when the copies that go on have ended. The caller holds
// mu.
func (g *Registry) drop(name string) {
	g.regions[name].data.Close()
	delete(g.regions, name)
}

// Register makes a part of a file a region, for a client that is named as by [gate.ClientOf]. The
// name must be free.
func (g *Registry) Register(client string, r Region) error { return g.RegisterFor(client, r, nil) }

// RegisterFor is Register of a region that ends with a connection at the latest; see Disconnected.
func (g *Registry) RegisterFor(client string, r Region, connection any) error {
	err := g.register(client, r, connection)
	if err != nil {
		g.refused[reasonOf(err)].Add(1)
	}
	return err
}

func (g *Registry) register(client string, r Region, connection any) error {
	if err := g.permit(client); err != nil {
		return err
	}
	s := g.settings.Load()
	switch {
	case r.Name == "" || len(r.Name) > maxName:
		return invalid("a region's name has %d bytes, expected 1 to %d", len(r.Name), maxName)
	case r.Offset < 0 || r.Size <= 0:
		return invalid("failed to register shared memory region '%s': invalid args: expected an offset of 0 or more and a byte_size of 1 or more, got %d and %d", r.Name, r.Offset, r.Size)
	case r.Size > s.RegionBytes:
		return fmt.Errorf("%w: failed to register shared memory region '%s': invalid args: byte_size is %d, the limit (shared_memory.region_bytes) is %d",
			scheduler.ErrTooLarge, r.Name, r.Size, s.RegionBytes)
	}
	if err := g.room(r.Name, s); err != nil { // before a file is opened
		return err
	}
	f, err := open(r, s)
	if err != nil {
		return err
	}
	f.connection = connection
	g.mu.Lock()
	defer g.mu.Unlock()
	if err = g.admit(r.Name, s); err == nil && g.settings.Load() != s {
		err = fmt.Errorf("%w: shared_memory was configured anew; try again", scheduler.ErrUnavailable)
	}
	if err != nil {
		f.data.Close()
		return err
	}
	g.regions[r.Name] = f
	return nil
}

func (g *Registry) room(name string, s *Settings) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admit(name, s)
}

// admit is the error for one region more, of that name. The caller holds mu.
func (g *Registry) admit(name string, s *Settings) error {
	if g.regions[name] != nil {
		return invalid("shared memory region '%s' already in manager; unregister it first", name)
	}
	if len(g.regions) >= s.Regions {
		g.forget()
	}
	if n := len(g.regions); n >= s.Regions {
		return fmt.Errorf("%w: failed to register shared memory region '%s': %d are registered, the limit (shared_memory.regions) is %d: unregister some that nobody uses",
			scheduler.ErrOverloaded, name, n, s.Regions)
	}
	return nil
}

// Disconnected unregisters what was registered for a connection that has ended.
func (g *Registry) Disconnected(connection any) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, f := range g.regions {
		if f.connection == connection {
			g.drop(name)
		}
	}
}

// forgetAfter is how long a region must have been unused, and its file removed, before others get
// its place.
const forgetAfter = time.Minute

// forget drops the regions of clients that have ended without unregistering them: their files are
// removed, and unused. Without it such clients would fill the registry for good, and a file's
// memory lasts as long as it is open. Those of a connection end with it. The caller holds mu.
func (g *Registry) forget() {
	for name, f := range g.regions {
		if f.connection == nil && time.Since(time.Unix(0, f.used.Load())) > forgetAfter && f.removed() {
			g.drop(name)
		}
	}
}

// Unregister forgets a region, and all of them without a name. One that there is not is none any
// more, and no error.
func (g *Registry) Unregister(client, name string) error {
	if err := g.permit(client); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for one := range g.regions {
		if name == "" || one == name {
			g.drop(one)
		}
	}
	return nil
}

// Close forgets all regions.
func (g *Registry) Close() {
	s := g.Settings()
	s.Directory = ""
	g.Configure(s)
}

// Status lists the regions by name, or the one of that name.
func (g *Registry) Status(client, name string) ([]Region, error) {
	if err := g.permit(client); err != nil {
		return nil, err
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	list := []Region{}
	for _, one := range slices.Sorted(maps.Keys(g.regions)) {
		if name == "" || one == name {
			list = append(list, g.regions[one].Region)
		}
	}
	if name != "" && len(list) == 0 {
		return nil, fmt.Errorf("%w: Unable to find system shared memory region: '%s'", scheduler.ErrNotFound, name)
	}
	return list, nil
}

// find returns the region of a place that lies in it, and that can be written if that is wanted.
func (g *Registry) find(p parameter.Place, write bool) (*file, error) {
	g.mu.RLock()
	f := g.regions[p.Region]
	g.mu.RUnlock()
	switch {
	case f == nil:
		return nil, missing(p.Region)
	case p.Offset > f.Size || p.Offset == f.Size && p.Size > 0:
		return nil, invalid("Invalid offset for shared memory region: '%s': %d, where the region has %d bytes", p.Region, p.Offset, f.Size)
	case p.Size > f.Size-p.Offset:
		return nil, invalid("Invalid offset + byte size for shared memory region: '%s': %d + %d, where the region has %d bytes", p.Region, p.Offset, p.Size, f.Size)
	case write && f.readOnly:
		return nil, fmt.Errorf("%w: shared memory region '%s' takes no outputs: the server's user, %d, may not write '%s'", gate.ErrPermissionDenied, p.Region, os.Geteuid(), f.Key)
	}
	f.used.Store(time.Now().UnixNano())
	return f, nil
}

func missing(name string) error {
	return fmt.Errorf("%w: Unable to find shared memory region: '%s': it is not registered, or no longer", scheduler.ErrNotFound, name)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{scheduler.ErrInvalidInput}, args...)...)
}
