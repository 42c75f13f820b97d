package apps

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/state"
)

// policyPrefix begins the keys of policy states in the store.
const policyPrefix = "policy/"

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
	cfg  Config
	apps *composite.Definitions[*App]

	linking  atomic.Pointer[linking]
	learning chan struct{} // feedback that waits for the store
	learners sync.WaitGroup

	states      states
	users       users
	Predictions Predictions
	order       composite.Order

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
	r.apps = composite.New(composite.Config[*App]{
		Store: cfg.Store, Key: "apps", Kind: gate.Application, Parse: read, Changed: r.changed, Log: cfg.Log,
	})
	r.apps.Follow()
	r.watching.Go(r.keepTidy) // ends with Close, which waits for it
	return r
}

// Close waits for feedback that is being learned, and stops following changes. It does not close
// the store.
func (r *Registry) Close() {
	r.learners.Wait()
	r.apps.Close()
	r.cancel()
	r.watching.Wait()
}

// changed forgets what belonged to applications that are gone.
func (r *Registry) changed(gone []string) {
	for _, name := range gone {
		r.states.forget(name)
		r.Predictions.forget(name)
	}
	r.cfg.Changed()
}

func read(value []byte) (name string, a *App, err error) {
	var d Definition
	if err = json.Unmarshal(value, &d); err == nil {
		a, err = New(d)
	}
	return d.Name, a, err
}

// Apps returns all applications, by name.
func (r *Registry) Apps() []*App { return r.apps.All() }

// App returns the application of that name; nil if there is none.
func (r *Registry) App(name string) *App { return r.apps.Find(name) }

// Create makes an application. If the name is taken, the error wraps
// composite.ErrExists.
func (r *Registry) Create(ctx context.Context, d Definition) (*App, error) {
	return r.put(ctx, d, false)
}

// Put makes an application or replaces it.
func (r *Registry) Put(ctx context.Context, d Definition) (*App, error) { return r.put(ctx, d, true) }

// Check reports what is wrong with a definition, by itself and against the current models. The
// error wraps scheduler.ErrInvalidInput and lists all faults.
func (r *Registry) Check(d Definition) (*App, error) {
	a, err := New(d)
	if err != nil {
		return nil, err
	}
	now := r.linking.Load()
	t := now.table
	if now.gate != nil {
		if kind := now.gate.KindOf(d.Name); kind != "" && kind != gate.Application {
			return nil, fault.Invalid("application %q: there is a %s of that name", d.Name, kind)
		}
	}
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
	return a, r.apps.Put(ctx, d.Name, e.Value, replace)
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
	return a, r.apps.Entry(d.Name, value), nil
}

// Refresh applies what is in the store now, without waiting for the watch.
func (r *Registry) Refresh() { r.apps.Refresh() }

// Change modifies an application in one atomic step: change gets the current definition.
func (r *Registry) Change(ctx context.Context, name string, change func(*Definition) error) (*App, error) {
	var a *App
	err := r.apps.Change(ctx, name, func(old []byte) ([]byte, error) {
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
	if err := r.apps.Delete(ctx, name); err != nil {
		return err
	}
	return r.Reset(ctx, name)
}

// Reset forgets what an application's policy has learned, for all users.
func (r *Registry) Reset(ctx context.Context, name string) error {
	entries, err := r.cfg.Store.List(state.Key("policy", name) + "/")
	if err != nil {
		return composite.Stored(err)
	}
	for _, e := range entries {
		if _, err := r.cfg.Store.Update(ctx, e.Key, "", func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return composite.Stored(err)
		}
	}
	return nil
}

// Unknown is the error for a name that no application has.
func (r *Registry) Unknown(name string) error { return r.apps.Unknown(name) }
