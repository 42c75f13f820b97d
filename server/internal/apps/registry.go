package apps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/nearest"
)

// The first segments of the keys in the store.
const (
	appsPrefix   = "apps/"
	policyPrefix = "policy/"
)

// Config of a Registry.
type Config struct {
	Store state.Store
	// Changed is called when applications were added, deleted or changed, by one goroutine at a
	// time.
	Changed func()
	// Users bounds the users of an application for whom the store keeps what its policy has
	// learned; the least recently used are dropped first. 0 = DefaultUsers.
	Users int
	Log   *slog.Logger // nil is silent
}

// A Registry holds the applications of a server, as its store has them.
type Registry struct {
	cfg     Config
	apps    atomic.Pointer[map[string]*App]
	reading sync.Mutex // held by read, so that a later read is not overwritten
	known   atomic.Bool

	linking  atomic.Pointer[linking]
	learning chan struct{} // feedback that waits for the store
	learners sync.WaitGroup

	states      states
	users       users
	Predictions Predictions
	order       order

	stop     func()          // ends the watch
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	watching sync.WaitGroup
}

// Open reads the applications and follows their changes until Close. A store that cannot be reached
// yet is followed as well.
func Open(cfg Config) *Registry {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Users = cmp.Or(cfg.Users, DefaultUsers)
	r := &Registry{cfg: cfg, learning: make(chan struct{}, maxLearning)}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.linking.Store(&linking{table: new(gate.Table)})
	r.apps.Store(&map[string]*App{})
	r.read() // so that the first requests find the applications
	changed := make(chan struct{}, 1)
	r.stop = cfg.Store.Watch(appsPrefix, changed)
	r.watching.Go(func() { // ends with Close, which waits for it
		for range wake.Each(changed, r.ctx.Done()) {
			r.read()
		}
	})
	r.watching.Go(r.keepTidy) // ends with Close, too
	return r
}

// Close waits for feedback that is being learned, and stops following changes. It does not close
// the store.
func (r *Registry) Close() {
	r.learners.Wait()
	r.stop()
	r.cancel()
	r.watching.Wait()
}

// read reads all applications from the store again.
func (r *Registry) read() {
	r.reading.Lock()
	defer r.reading.Unlock()
	entries, err := r.cfg.Store.List(appsPrefix)
	if err != nil {
		r.cfg.Log.Warn("applications cannot be read", "error", err)
		return
	}
	old, now := *r.apps.Load(), make(map[string]*App, len(entries))
	for _, e := range entries {
		a, err := read(e.Value)
		if err != nil {
			r.cfg.Log.Error("an application in the store is not usable", "key", e.Key, "error", err)
			continue
		}
		now[a.Name] = a
	}
	r.apps.Store(&now)
	r.known.Store(true)
	for name := range old {
		if now[name] == nil {
			r.states.forget(name)
			r.Predictions.forget(name)
		}
	}
	r.cfg.Changed()
}

func read(value []byte) (*App, error) {
	var d Definition
	if err := json.Unmarshal(value, &d); err != nil {
		return nil, err
	}
	return New(d)
}

// Apps returns all applications, by name.
func (r *Registry) Apps() []*App {
	return slices.SortedFunc(maps.Values(*r.apps.Load()), func(a, b *App) int { return cmp.Compare(a.Name, b.Name) })
}

// App returns the application of that name; nil if there is none.
func (r *Registry) App(name string) *App { return (*r.apps.Load())[name] }

// Create makes an application. If the name is taken, the error wraps ErrExists.
func (r *Registry) Create(ctx context.Context, d Definition) (*App, error) {
	return r.put(ctx, d, false)
}

// ErrExists reports that there is an application of that name already.
var ErrExists = errors.New("apps: exists already")

// Put makes an application or replaces it.
func (r *Registry) Put(ctx context.Context, d Definition) (*App, error) { return r.put(ctx, d, true) }

// Check reports what is wrong with a definition, by itself and against the current models. The
// error wraps scheduler.ErrInvalidInput and lists all faults.
func (r *Registry) Check(d Definition) (*App, error) {
	a, err := New(d)
	if err != nil {
		return nil, err
	}
	t := r.linking.Load().table
	if t.Versions(d.Name) != nil && !a.Only(d.Name) {
		return nil, fault.Invalid("application %q: there is a model of that name, but the application does not link to that model alone", d.Name)
	}
	for target := range linkedTargets(t, a) {
		err := a.fits(target)
		if err == nil {
			err = a.defaultFits(target)
		}
		if err != nil {
			return nil, fault.Invalid("application %q: %w", d.Name, err)
		}
	}
	return a, nil
}

func (r *Registry) put(ctx context.Context, d Definition, replace bool) (*App, error) {
	a, e, err := r.Entry(d)
	if err != nil {
		return nil, err
	}
	if old, err := r.cfg.Store.Get(e.Key); err == nil && old.Value == nil {
		// Delete what an earlier application of that name had learned, or was taught after its
		// deletion: it does not belong to the new one.
		if err := r.Reset(ctx, d.Name); err != nil {
			return nil, err
		}
	}
	err = r.update(ctx, d.Name, func(old []byte) ([]byte, error) {
		if old != nil && !replace {
			return nil, fmt.Errorf("%w: application %q", ErrExists, d.Name)
		}
		return e.Value, nil
	})
	return a, err
}

// Entry checks a definition and returns its entry for the store, for callers that write several at
// once. They call Refresh afterwards.
func (r *Registry) Entry(d Definition) (*App, state.Entry, error) {
	a, err := r.Check(d)
	if err != nil {
		return nil, state.Entry{}, err
	}
	value, err := json.Marshal(a.Definition)
	if err != nil {
		return nil, state.Entry{}, fault.Invalid("application %q: %w", d.Name, err)
	}
	return a, state.Entry{Key: state.Key("apps", d.Name), Value: value}, nil
}

// Refresh applies what is in the store now, without waiting for the watch.
func (r *Registry) Refresh() { r.read() }

// update changes a definition in the store. When it returns nil, the change is in effect in this
// server.
func (r *Registry) update(ctx context.Context, name string, change func(old []byte) ([]byte, error)) error {
	if _, err := r.cfg.Store.Update(ctx, state.Key("apps", name), "", change); err != nil {
		return Stored(err)
	}
	r.read()
	return nil
}

// Change modifies an application in one atomic step: change gets the current definition.
func (r *Registry) Change(ctx context.Context, name string, change func(*Definition) error) (*App, error) {
	var a *App
	err := r.update(ctx, name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, r.Unknown(name)
		}
		var d Definition
		if err := json.Unmarshal(old, &d); err != nil {
			return nil, err
		}
		if err := change(&d); err != nil {
			return nil, err
		}
		if d.Name != name {
			return nil, fault.Invalid("application %q cannot be renamed to %q: make a new one", name, d.Name)
		}
		var e state.Entry
		var err error
		a, e, err = r.Entry(d)
		return e.Value, err
	})
	return a, err
}

// Delete deletes an application and what its policy has learned.
func (r *Registry) Delete(ctx context.Context, name string) error {
	err := r.update(ctx, name, func(old []byte) ([]byte, error) {
		if old == nil {
			return nil, r.Unknown(name)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	return r.Reset(ctx, name)
}

// Reset forgets what an application's policy has learned, for all users.
func (r *Registry) Reset(ctx context.Context, name string) error {
	entries, err := r.cfg.Store.List(state.Key("policy", name) + "/")
	if err != nil {
		return Stored(err)
	}
	for _, e := range entries {
		if _, err := r.cfg.Store.Update(ctx, e.Key, "", func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return Stored(err)
		}
	}
	return nil
}

// Unknown is the error for a name that no application has.
func (r *Registry) Unknown(name string) error {
	near := nearest.Names(name, slices.Sorted(maps.Keys(*r.apps.Load())))
	if len(near) == 0 {
		return fmt.Errorf("%w: no application %q", scheduler.ErrNotFound, name)
	}
	return fmt.Errorf("%w: no application %q; nearest: %s", scheduler.ErrNotFound, name, gate.Join(near, strconv.Quote, ", "))
}

// Stored wraps a store error in a condition that clients know.
func Stored(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, state.ErrUnavailable), errors.Is(err, state.ErrFull), errors.Is(err, state.ErrClosed), errors.Is(err, state.ErrConflict):
		return storedError{err, scheduler.ErrUnavailable}
	case errors.Is(err, state.ErrTooLarge):
		return storedError{err, scheduler.ErrTooLarge}
	}
	return err
}

// A storedError has only the text of the store's error: the condition's own text is about replicas
// and messages.
type storedError struct {
	error
	condition error
}

func (e storedError) Unwrap() []error { return []error{e.error, e.condition} }
