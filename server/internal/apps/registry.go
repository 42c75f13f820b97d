package apps

import (
	"cmp"
	"context"
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
	*composite.Definitions[Definition, *App]
	cfg Config

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
	r.Definitions = composite.New(composite.Config[Definition, *App]{
		Store: cfg.Store, Key: "apps", Kind: gate.Application, New: New, Check: r.check,
		Name: func(d Definition) string { return d.Name }, Of: func(a *App) Definition { return a.Definition },
		// Also what an application was taught after its deletion: it does not belong to the next.
		Forget: r.Reset, Changed: r.changed, Log: cfg.Log,
	})
	r.Follow()
	r.watching.Go(r.keepTidy) // ends with Close, which waits for it
	return r
}

// Close waits for feedback that is being learned, and stops following changes. It does not close
// the store.
func (r *Registry) Close() {
	r.learners.Wait()
	r.Definitions.Close()
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

// check checks a definition, by itself and against the current models.
func (r *Registry) check(d Definition) (*App, error) {
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
