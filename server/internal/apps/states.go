package apps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
)

// states are policy states as they were parsed last, since a request should not parse JSON. The store is asked every time whether they
// still hold, which is a lookup in memory.
type states struct {
	mu    sync.Mutex
	known map[stateKey]parsed
}

type stateKey struct{ app, user string }

type parsed struct {
	revision uint64 // of the store; 0: nothing is stored
	of       *App   // a changed definition may change what a state means
	state    selection.State
}

// maxStates bounds what is kept parsed. Beyond it the rest is parsed again.
const maxStates = 16384

func (s *states) forget(app string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.known {
		if k.app == app {
			delete(s.known, k)
		}
	}
}

// State is what the policy of a knows for user, brought up to these candidate models. It reads memory only.
func (r *Registry) State(a *App, user string, models []selection.Model) (selection.State, error) {
	key := stateKey{a.Name, user}
	entry, err := r.cfg.Store.Get(PolicyKey(a.Name, user))
	if err != nil && !errors.Is(err, state.ErrUnavailable) {
		return selection.State{}, stored(err)
	}
	// With a store that has not answered yet, policies begin with what they know of nobody: serving goes on.
	r.states.mu.Lock()
	p, ok := r.states.known[key]
	r.states.mu.Unlock()
	if ok && p.revision == entry.Revision && p.of == a && same(p.state, models) {
		return p.state, nil
	}
	p = parsed{revision: entry.Revision, of: a}
	if p.state, err = a.restore(entry.Value, models); err != nil {
		return p.state, err
	}
	if len(user) > state.MaxKeyBytes { // the store cannot have it, and many such would take gigabytes
		return p.state, nil
	}
	r.states.mu.Lock()
	if r.states.known == nil || len(r.states.known) >= maxStates {
		r.states.known = make(map[stateKey]parsed)
	}
	r.states.known[key] = p
	r.states.mu.Unlock()
	return p.state, nil
}

// PolicyKey is where the store has what the policy of an application knows for a user.
func PolicyKey(app, user string) string { return state.Key("policy", app, "u"+user) }

// restore reads a stored state and brings it up to the candidates of now. What cannot be read is begun anew.
func (a *App) restore(value []byte, models []selection.Model) (selection.State, error) {
	var s selection.State
	if value == nil || json.Unmarshal(value, &s) != nil {
		s = selection.State{}
	}
	s, err := a.Selection.Migrate(s, models)
	if err != nil {
		return s, fmt.Errorf("%w: application %q cannot be asked as it is defined: %w", scheduler.ErrUnavailable, a.Name, err)
	}
	return s, nil
}

// widened is models with those of a stored state that this server has not seen, though the application links to them. When it has just started and
// containers connect one after the other, or when another server that shares the store has them, what was learned of them is to be kept.
func (a *App) widened(value []byte, models []selection.Model) []selection.Model {
	var s selection.State
	if value == nil || json.Unmarshal(value, &s) != nil {
		return models
	}
	wide := models
	for _, arm := range s.Models {
		if !slices.Contains(models, arm.Model) && a.awaits(arm.Model, models) {
			wide = append(wide[:len(wide):len(wide)], arm.Model)
		}
	}
	return wide
}

// awaits tells whether a link names m, or no version in particular of a model that none of models is a version of.
func (a *App) awaits(m selection.Model, models []selection.Model) bool {
	return slices.ContainsFunc(a.Models, func(l Link) bool {
		name, version := l.Split()
		if name != m.Name {
			return false
		}
		return version == m.Version ||
			(version == "" || version == "*") && !slices.ContainsFunc(models, func(other selection.Model) bool { return other.Name == name })
	})
}

func same(s selection.State, models []selection.Model) bool {
	return len(s.Models) == len(models) &&
		!slices.ContainsFunc(s.Models, func(arm selection.Arm) bool { return !slices.Contains(models, arm.Model) })
}

// Learn teaches the policy of a, for user, what became of a request, in one atomic step across all servers. models are the candidates of
// now. id names the feedback, "" for one that has no name: what was learned with the same id before is not learned again, and applied is
// then false.
func (r *Registry) Learn(ctx context.Context, a *App, user, id string, models []selection.Model, said []selection.Prediction, outcome selection.Outcome) (s selection.State, applied bool, err error) {
	_, err = r.cfg.Store.Update(ctx, PolicyKey(a.Name, user), id, func(old []byte) ([]byte, error) {
		var err error
		if s, err = r.teach(a, old, models, said, outcome); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	})
	if errors.Is(err, state.ErrApplied) {
		s, err = r.State(a, user, models)
		return s, false, err
	}
	return s, err == nil, stored(err)
}

// teach gives the state after old. It runs in the store, on any goroutine and with its locks held: a panic is an error of this feedback and no more.
func (r *Registry) teach(a *App, old []byte, models []selection.Model, said []selection.Prediction, outcome selection.Outcome) (s selection.State, err error) {
	defer func() {
		if what := recover(); what != nil {
			r.cfg.Log.Error("panic over feedback", "application", a.Name, "panic", what, "stack", string(debug.Stack()))
			err = fmt.Errorf("apps: panic over feedback for application %q: %v", a.Name, what)
		}
	}()
	if s, err = a.restore(old, a.widened(old, models)); err != nil {
		if s, err = a.restore(old, models); err != nil {
			return s, err
		}
	}
	if s, err = a.Selection.Feedback(s, said, outcome); err != nil {
		return s, fmt.Errorf("%w: application %q: %w", scheduler.ErrInvalidInput, a.Name, err)
	}
	return s, nil
}

// A Learned is what a policy knows for one user.
type Learned struct {
	User   string          `json:"user"`
	State  selection.State `json:"state"`
	Shares []float64       `json:"shares"` // what part each model of the state has in the answers
}

// Learned lists what the policy of an application has learned, by user. At most so many; more tells that there are.
func (r *Registry) Learned(a *App, most int) (list []Learned, more bool, err error) {
	entries, err := r.cfg.Store.List(state.Key("policy", a.Name) + "/")
	if err != nil {
		return nil, false, stored(err)
	}
	list = []Learned{}
	for _, e := range entries {
		segments, err := state.Segments(e.Key)
		if err != nil || len(segments) != 3 {
			continue
		}
		l := Learned{User: segments[2][len("u"):]}
		if json.Unmarshal(e.Value, &l.State) != nil {
			continue
		}
		if l.Shares, err = a.Selection.Shares(l.State); err != nil {
			continue // of another policy: it begins anew with the next request
		}
		if len(list) == most {
			return list, true, nil
		}
		list = append(list, l)
	}
	return list, false, nil
}
