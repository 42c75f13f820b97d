package operate

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
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/pipelines"
	"github.com/shivad/shivad/server/state"
)

// A Store is the state store and the registries of the applications and the pipelines in it, which
// open after the server was made. Its methods may be called from any goroutine; all except Registry
// only after Open.
type Store struct {
	at   config.State
	open Opener
	log  *slog.Logger

	backend atomic.Pointer[backend] // nil: not yet
}

type backend struct {
	store state.Store
	apps  *apps.Registry
	lines *pipelines.Registry
}

// An Opener opens a state store where the configuration says.
type Opener func(at string, opts state.Options) (state.Store, error)

// OpenState is the Opener of a real server.
func OpenState(at string, opts state.Options) (state.Store, error) {
	if at == "" {
		return state.NewMemory(opts)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return state.Open(ctx, at, opts)
}

// NewStore returns a store that Open opens where the configuration says.
func NewStore(at config.State, open Opener, log *slog.Logger) *Store {
	return &Store{at: at, open: open, log: log}
}

// Open opens the store, and gives the gate the registries of the applications and the pipelines in
// it, and of the pipelines of the configuration. changed is called when one of them has changed.
func (s *Store) Open(g *gate.Gate, fixed []pipelines.Definition, changed func()) (err error) {
	var o backend
	if o.store, err = s.open(s.at.At,
		state.Options{Namespace: s.at.Namespace, Required: s.at.Required, Logger: s.log}); err != nil {
		return err
	}
	relink := func() {
		g.Changed()
		changed()
	}
	o.apps = apps.Open(apps.Config{Store: o.store, Changed: relink, Users: s.at.Users, Log: s.log})
	o.lines = pipelines.Open(pipelines.Config{Store: o.store, Changed: relink, Log: s.log})
	o.lines.Configure(fixed)
	s.backend.Store(&o)
	g.AttachComposites(o.apps, o.lines)
	return nil
}

// Drain waits until the pipelines have answered their requests, or ctx ends. The gate must refuse
// others.
func (s *Store) Drain(ctx context.Context) {
	if o := s.backend.Load(); o != nil {
		o.lines.Drain(ctx)
	}
}

// Close closes what Open has opened.
func (s *Store) Close() error {
	o := s.backend.Load()
	if o == nil {
		return nil
	}
	o.apps.Close()
	o.lines.Close()
	return o.store.Close()
}

// Apps returns the applications. It must be called after Open, which Sources.Await ensures
// for the admin door.
func (s *Store) Apps() *apps.Registry { return s.backend.Load().apps }

// Pipelines returns the pipelines; like Apps, after Open.
func (s *Store) Pipelines() *pipelines.Registry { return s.backend.Load().lines }

// State returns the store itself; like Apps, after Open.
func (s *Store) State() state.Store { return s.backend.Load().store }

// Registry is Apps for callers that may come before Open; its error then wraps
// scheduler.ErrUnavailable.
func (s *Store) Registry() (*apps.Registry, error) {
	if o := s.backend.Load(); o != nil {
		return o.apps, nil
	}
	return nil, fmt.Errorf("%w: %w", scheduler.ErrUnavailable, &Error{Status: http.StatusServiceUnavailable, Text: "this server is not serving yet"})
}

// Admit refuses a model with the name of a pipeline, or of an application that links to other
// models as well: requests for the model would go there.
func (s *Store) Admit(id scheduler.ModelID) error {
	if a := s.Apps().Find(id.Name); a != nil && !a.Only(id.Name) {
		return fmt.Errorf("there is an application %q, which links to %q: give the model another name, or delete the application",
			a.Name, a.Models)
	}
	if s.Pipelines().Find(id.Name) != nil {
		return fmt.Errorf("there is a pipeline %q: give the model another name, or delete the pipeline", id.Name)
	}
	return nil
}

// Linked reports whether an application links to that version of a model even when it is not the
// default, or a pipeline names it.
func (s *Store) Linked(model, version string) bool {
	if slices.ContainsFunc(s.Pipelines().All(), func(p *pipelines.Pipeline) bool {
		return slices.Contains(p.Models(), model+"/"+version)
	}) {
		return true
	}
	return slices.ContainsFunc(s.Apps().All(), func(a *apps.App) bool { return a.Keeps(model, version) })
}

// Health reports how the store is doing.
func (s *Store) Health() admin.State {
	health := s.State().Health()
	k := admin.State{At: s.at.Redacted(), Since: health.Since, Healthy: health.Err == nil}
	if !k.Healthy {
		k.Error = strings.TrimPrefix(health.Err.Error(), "state: ")
	}
	return k
}

// Gauges returns the applications' values for the metrics.
func (s *Store) Gauges() (list []metrics.LearnedGauges) {
	for _, a := range s.Apps().All() {
		users := s.Apps().Users(a.Name)
		list = append(list, metrics.LearnedGauges{Application: a.Name, Users: users.Kept, Forgotten: users.Forgotten})
	}
	return list
}
