package manage

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/server/state"
)

// A Store is the state store and the registry of the applications in it, which open after the
// server was made. Its methods may be called from everywhere.
type Store struct {
	at      config.State
	started time.Time
	log     *slog.Logger

	opened atomic.Pointer[opened] // nil: not yet
}

type opened struct {
	store state.Store
	apps  *apps.Registry
}

// NewStore makes a store that opens where the configuration says.
func NewStore(at config.State, started time.Time, log *slog.Logger) *Store {
	return &Store{at: at, started: started, log: log}
}

// Open opens the store, and gives the gate the registry of the applications in it. changed is
// called when these have.
func (s *Store) Open(g *gate.Gate, changed func()) (err error) {
	opts := state.Options{Namespace: s.at.Namespace, Required: s.at.Required, Logger: s.log}
	var o opened
	if s.at.At == "" {
		o.store, err = state.NewMemory(opts)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		o.store, err = state.Open(ctx, s.at.At, opts)
	}
	if err != nil {
		return err
	}
	o.apps = apps.Open(apps.Config{
		Store: o.store,
		Changed: func() {
			g.Changed()
			changed()
		},
		Users: s.at.Users,
		Log:   s.log,
	})
	s.opened.Store(&o)
	g.AttachApplications(o.apps)
	return nil
}

// Close ends what Open has begun.
func (s *Store) Close() error {
	o := s.opened.Load()
	if o == nil {
		return nil
	}
	o.apps.Close()
	return o.store.Close()
}

// get returns both, or the error for whoever asks before they are open.
func (s *Store) get() (*apps.Registry, state.Store, error) {
	if o := s.opened.Load(); o != nil {
		return o.apps, o.store, nil
	}
	return nil, nil, &admin.Error{Status: http.StatusServiceUnavailable, Text: "this server is not serving yet"}
}

// Registry is that of the applications; its error wraps scheduler.ErrUnavailable.
func (s *Store) Registry() (*apps.Registry, error) {
	r, _, err := s.get()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", scheduler.ErrUnavailable, err)
	}
	return r, nil
}

// State is the store itself.
func (s *Store) State() (state.Store, error) {
	_, store, err := s.get()
	return store, err
}

// Admit refuses a model by the name of an application that links to others as well: requests for
// the one would go to the other.
func (s *Store) Admit(id scheduler.ModelID) error {
	r, _, err := s.get()
	if err != nil {
		return err
	}
	if a := r.App(id.Name); a != nil && !a.Only(id.Name) {
		return fmt.Errorf("there is an application %q, which links to %q: give the model another name, or delete the application", a.Name, a.Models)
	}
	return nil
}

// Linked reports whether an application asks that version of a model even if it is not the default.
func (s *Store) Linked(model, version string) bool {
	r, _, err := s.get()
	return err == nil && slices.ContainsFunc(r.Apps(), func(a *apps.App) bool { return a.Keeps(model, version) })
}

// Health reports how the store is doing.
func (s *Store) Health() admin.State {
	k := admin.State{At: s.at.Redacted(), Since: s.started}
	_, store, err := s.get()
	if err != nil {
		k.Error = err.Error()
		return k
	}
	health := store.Health()
	k.Since = health.Since
	if k.Healthy = health.Err == nil; !k.Healthy {
		k.Error = strings.TrimPrefix(health.Err.Error(), "state: ")
	}
	return k
}

// Gauges is what the metrics read of the applications when they are asked.
func (s *Store) Gauges() (list []metrics.LearnedGauges) {
	r, _, err := s.get()
	if err != nil {
		return nil
	}
	for _, a := range r.Apps() {
		users := r.Users(a.Name)
		list = append(list, metrics.LearnedGauges{Application: a.Name, Users: users.Kept, Forgotten: users.Forgotten})
	}
	return list
}
