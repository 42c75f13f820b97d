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
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
)

// states caches parsed policy states, so that a request need not parse JSON. Each use asks the
// store whether the state is current, which is a lookup in memory.
type states struct {
	mu     sync.Mutex
	known  map[stateKey]*parsed
	newest uint64 // latest revision of the store seen
}

type stateKey struct{ app, user string }

type parsed struct {
	revision uint64 // of the store; 0: nothing is stored
	of       *App   // a changed definition may change what a state means
	state    selection.State
	used     uint64 // newest at the last request for it
}

// maxStates bounds the parsed states. Those beyond it are parsed again.
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

// find returns the state of a key if it is still current, and records the use.
func (s *states) find(key stateKey, a *App, revision uint64, models []selection.Model) (selection.State, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, revision)
	p := s.known[key]
	if p == nil || p.revision != revision || p.of != a || !same(p.state, models) {
		return selection.State{}, false
	}
	p.used = s.newest
	return p.state, true
}

// keep adds a state, and drops the less recently used half if there are too many.
func (s *states) keep(key stateKey, p parsed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = make(map[stateKey]*parsed)
	}
	if len(s.known) >= maxStates {
		used := make([]uint64, 0, len(s.known))
		for _, p := range s.known {
			used = append(used, p.used)
		}
		slices.Sort(used)
		drop := len(used) / 2
		for k, p := range s.known {
			if drop > 0 && p.used <= used[len(used)/2] {
				delete(s.known, k)
				drop--
			}
		}
	}
	p.used = s.newest
	s.known[key] = &p
}

// noteRevision records a revision of the store.
func (s *states) noteRevision(revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, revision)
}

// used returns the revision of the store when this server last asked for a state; 0: never.
func (s *states) used(app, user string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.known[stateKey{app, user}]; p != nil {
		return p.used
	}
	return 0
}

// State returns what the policy of a has learned for user, adapted to the candidate models. It
// reads memory only.
func (r *Registry) State(a *App, user string, models []selection.Model) (selection.State, error) {
	key := stateKey{a.Name, user}
	entry, err := r.cfg.Store.Get(PolicyKey(a.Name, user))
	if err != nil && !errors.Is(err, state.ErrUnavailable) {
		return selection.State{}, composite.Stored(err)
	}
	// While the store has not answered yet, policies start from their initial state: serving goes
	// on.
	if s, ok := r.states.find(key, a, entry.Revision, models); ok {
		return s, nil
	}
	// The same holds for a state that this server cannot read. Learning must not overwrite it,
	// though.
	var s selection.State
	if entry.Value != nil && json.Unmarshal(entry.Value, &s) != nil {
		s = selection.State{}
	}
	if s, err = a.Selection.Migrate(s, models); err != nil {
		return s, a.unaskable(err)
	}
	// The store cannot have a longer key, and caching many such users would take gigabytes.
	if len(user) <= state.MaxKeyBytes {
		r.states.keep(key, parsed{revision: entry.Revision, of: a, state: s})
	}
	return s, nil
}

func (a *App) unaskable(err error) error {
	return fmt.Errorf("%w: application %q cannot serve requests as it is defined: %w", scheduler.ErrUnavailable, a.Name,
		err)
}

// PolicyKey returns the store's key for what the policy of an application has learned for a user.
func PolicyKey(app, user string) string { return state.Key("policy", app, "u"+user) }

// PolicyUser is the inverse of PolicyKey.
func PolicyUser(key string) (app, user string, ok bool) {
	segments, err := state.Segments(key)
	if err != nil || len(segments) != 3 || segments[2] == "" {
		return "", "", false
	}
	return segments[1], segments[2][len("u"):], true
}

// CheckState checks that a text can be the state of a policy, and returns it in the form for the
// store.
func CheckState(text []byte) (value []byte, err error) {
	var s selection.State
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// Lost describes what a stored state has that is not in the one that would replace it; "" if
// nothing. An unreadable state has nothing to lose.
func Lost(old, next []byte) string {
	var was, is selection.State
	if json.Unmarshal(old, &was) != nil {
		return ""
	}
	if json.Unmarshal(next, &is) != nil {
		is = selection.State{}
	}
	rounds := map[string]uint64{is.Policy: is.Rounds}
	for _, o := range is.Others {
		rounds[o.Policy] = o.Rounds
	}
	text := ""
	for _, s := range append([]selection.State{was}, was.Others...) {
		if n := rounds[s.Policy]; n < s.Rounds {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("what %s learned from %d feedbacks (%d in the document)", s.Policy, s.Rounds, n)
		}
	}
	return text
}

func same(s selection.State, models []selection.Model) bool {
	return len(s.Models) == len(models) &&
		!slices.ContainsFunc(s.Models, func(arm selection.Arm) bool { return !slices.Contains(models, arm.Model) })
}

// A Judged is a request of which it has become known how it went.
type Judged struct {
	User string
	ID   string // names the feedback; "": it has no name

	Predictions []selection.Prediction
	Outcome     selection.Outcome
}

// Learn teaches the policy of a what became of a request, in one atomic step across all servers. a
// is the application as it is now, which may have changed since the request, and models are its
// current candidates. Feedback that was learned with the same id before is not learned again, and
// applied is then false.
//
// A server that does not know of a change yet teaches the old policy, whose state is stored
// alongside the new one's. For an application that has just been deleted it leaves a state, which
// tidy deletes.
func (r *Registry) Learn(ctx context.Context, a *App, models []selection.Model,
	j Judged) (s selection.State, applied bool, err error) {
	e, err := r.cfg.Store.Update(ctx, PolicyKey(a.Name, j.User), j.ID, func(old []byte) ([]byte, error) {
		var err error
		if s, err = r.teach(a, old, models, j); err != nil {
			return nil, err
		}
		return json.Marshal(s)
	})
	r.states.noteRevision(e.Revision)
	if errors.Is(err, state.ErrApplied) {
		s, err = r.State(a, j.User, models)
		return s, false, err
	}
	return s, err == nil, composite.Stored(err)
}

// teach returns the state that follows old. It runs in the store, on any goroutine and with the
// store's locks held: a panic fails only this feedback.
func (r *Registry) teach(a *App, old []byte, models []selection.Model, j Judged) (s selection.State, err error) {
	defer func() {
		if what := recover(); what != nil {
			r.cfg.Log.Error("panic while learning from feedback", "application", a.Name, "panic", what, "stack",
				string(debug.Stack()))
			err = fmt.Errorf("apps: panic while learning from feedback for application %q: %v", a.Name, what)
		}
	}()
	if old != nil {
		if err := json.Unmarshal(old, &s); err != nil {
			return s, fmt.Errorf("%w: application %q: this server cannot read the stored state of the policy, and does not overwrite it; reset it (shivactl policies forget) or use a version of shivad that can read it: %w",
				scheduler.ErrUnavailable, a.Name, err)
		}
	}
	if len(models) == 0 { // none is connected here, so the models that learned last learn
		models = modelsOf(s)
	}
	if s, err = a.Selection.Migrate(s, models); err != nil {
		return s, a.unaskable(err)
	}
	if s, err = a.Selection.Feedback(s, j.Predictions, j.Outcome); err != nil {
		return s, fault.Invalid("application %q: %w", a.Name, err)
	}
	return s, nil
}

// A Learned is what a policy has learned for one user.
type Learned struct {
	User   string          `json:"user"`
	State  selection.State `json:"state"`
	Shares []float64       `json:"shares"` // the share of each model of the state in the answers
}

// Learned lists what the policy of an application has learned, by user: up to most entries. more
// reports whether there are others.
func (r *Registry) Learned(a *App, most int) (list []Learned, more bool, err error) {
	entries, err := r.cfg.Store.List(state.Key("policy", a.Name) + "/")
	if err != nil {
		return nil, false, composite.Stored(err)
	}
	list = []Learned{}
	for _, e := range entries {
		_, user, ok := PolicyUser(e.Key)
		if !ok {
			continue
		}
		l, ok := a.learned(user, e)
		if !ok {
			continue
		}
		if len(list) == most {
			return list, true, nil
		}
		list = append(list, l)
	}
	return list, false, nil
}

// LearnedFor returns what the policy of an application has learned for one user. ok is false if it
// has learned nothing.
func (r *Registry) LearnedFor(a *App, user string) (l Learned, ok bool, err error) {
	e, err := r.cfg.Store.Get(PolicyKey(a.Name, user))
	if err != nil {
		return l, false, composite.Stored(err)
	}
	l, ok = a.learned(user, e)
	return l, ok, nil
}

// First returns what the policy of an application has learned for the first of its users, as of
// some seconds ago. What was learned for requests without a user comes before all others. The cost
// does not depend on the number of users. ok is false if there is none.
func (r *Registry) First(a *App) (l Learned, ok bool, err error) {
	for _, user := range r.Users(a.Name).first {
		if l, ok, err = r.LearnedFor(a, user); ok || err != nil {
			break
		}
	}
	return l, ok, err
}

// learned reads what is stored for a user. ok is false if nothing is stored, or nothing that this
// server can read.
func (a *App) learned(user string, e state.Entry) (l Learned, ok bool) {
	l.User = user
	if e.Value == nil || json.Unmarshal(e.Value, &l.State) != nil {
		return l, false
	}
	var err error
	// The policy was changed, and has learned nothing for this user since.
	if l.State.Policy != a.Policy {
		if l.State, err = a.Selection.Migrate(l.State, modelsOf(l.State)); err != nil || l.State.Rounds == 0 {
			return l, false
		}
	}
	l.Shares, err = a.Selection.Shares(l.State)
	return l, err == nil
}

func modelsOf(s selection.State) []selection.Model {
	models := make([]selection.Model, len(s.Models))
	for i, arm := range s.Models {
		models[i] = arm.Model
	}
	return models
}
