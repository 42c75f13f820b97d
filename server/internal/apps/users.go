package apps

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/backoff"
)

// DefaultUsers is the default of Config.Users. What a policy has learned for one user takes about
// 1.2 KB in every server for three models.
const DefaultUsers = 10000

// tidyEvery is how often states are tidied while there is learning.
const tidyEvery = 2 * time.Second

// users counts the users with a state, by application.
type users struct {
	mu    sync.Mutex
	byApp map[string]Users
}

// Users counts the users for whom an application's policy has learned something.
type Users struct {
	Kept      int      // in the store
	Forgotten uint64   // by this server since it started, to make room
	first     []string // the first users in the store, in key order: firstUsers at most
}

// firstUsers is how many users of an application First asks for: the states of some cannot be read,
// or are of another policy.
const firstUsers = 8

// Users reports for how many users the policy of an application has learned something, as of
// some seconds ago.
func (r *Registry) Users(app string) Users {
	r.users.mu.Lock()
	defer r.users.mu.Unlock()
	return r.users.byApp[app]
}

// keepTidy runs tidy after learning until the registry is closed. All servers of a store do so
// without coordination: states that one server has deleted are not there for the others.
func (r *Registry) keepTidy() {
	changed := make(chan struct{}, 1)
	defer r.cfg.Store.Watch(policyPrefix, changed)()
	for range wake.Each(changed, r.ctx.Done()) {
		r.tidy(r.ctx)
		if !backoff.Wait(tidyEvery, r.ctx.Done()) {
			return
		}
	}
}

// tidy deletes the states of deleted applications, and the states of the least recently used users
// where there are too many. A state that changes meanwhile stays.
func (r *Registry) tidy(ctx context.Context) {
	entries, err := r.cfg.Store.List(policyPrefix)
	if err != nil {
		return // the next change triggers another attempt
	}
	type candidate struct {
		state.Entry
		used uint64 // a revision of the store
	}
	byApp, first := map[string][]candidate{}, map[string][]string{}
	for _, e := range entries {
		r.states.noteRevision(e.Revision)
		if app, user, ok := PolicyUser(e.Key); ok {
			byApp[app] = append(byApp[app], candidate{e, max(e.Revision, r.states.used(app, user))})
			if len(first[app]) < firstUsers {
				first[app] = append(first[app], user)
			}
		}
	}
	counts := make(map[string]Users, len(byApp))
	for app, states := range byApp {
		count := r.Users(app)
		count.first = first[app]
		excess := len(states) - r.cfg.Users
		ended := false
		// The states were listed before this check: a state of a new application of the same name
		// is not among them.
		if e, err := r.cfg.Store.Get(state.Key("apps", app)); err == nil && e.Value == nil {
			excess, ended = len(states), true
		}
		if excess > 0 {
			slices.SortFunc(states, func(a, b candidate) int { return cmp.Compare(a.used, b.used) })
			gone := make([]state.Entry, excess)
			for i := range gone {
				gone[i] = states[i].Entry
			}
			n := r.discard(ctx, gone)
			if count.Kept = len(states) - n; !ended {
				count.Forgotten += uint64(n)
				r.cfg.Log.Info("the policy states of the least recently used users were deleted", "application", app,
					"users", n, "limit", r.cfg.Users)
			}
		} else {
			count.Kept = len(states)
		}
		if !ended {
			counts[app] = count
		}
	}
	r.users.mu.Lock()
	defer r.users.mu.Unlock()
	for app, count := range r.users.byApp {
		if _, ok := counts[app]; !ok && r.Find(app) != nil { // all of its states were deleted
			counts[app] = Users{Forgotten: count.Forgotten}
		}
	}
	r.users.byApp = counts
}

var errChanged = errors.New("apps: it has changed")

// discard deletes entries that have not changed, and returns how many it has deleted. It keeps
// several deletions under way, since a store on disk syncs once for all that wait.
func (r *Registry) discard(ctx context.Context, entries []state.Entry) int {
	const atOnce = 16
	var deleted atomic.Int64
	var wg sync.WaitGroup
	under := make(chan struct{}, atOnce)
	for _, e := range entries {
		if under <- struct{}{}; ctx.Err() != nil {
			break
		}
		wg.Go(func() { // ends with the store's answer
			defer func() { <-under }()
			_, err := r.cfg.Store.Update(ctx, e.Key, "", func(old []byte) ([]byte, error) {
				if !bytes.Equal(old, e.Value) {
					return nil, errChanged
				}
				return nil, nil
			})
			if err == nil {
				deleted.Add(1)
			}
		})
	}
	wg.Wait()
	return int(deleted.Load())
}
