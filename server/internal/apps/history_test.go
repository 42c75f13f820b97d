package apps

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/server/state/statetest"
	"github.com/shivad/shivad/shiva/budgettest"
)

var histories = flag.Int("histories", 1, "how many histories TestHistoriesOverRedis makes and checks")

// TestHistoriesOverRedis: clients of two servers with one Redis teach the policy of an application,
// and change, delete and make another, while connections to Redis break, Redis hangs, and Redis
// dies and loses all data. The test records the answers to all calls with their times, and
// porcupine looks for an order of all changes in which a single server could have given the same
// answers. So no feedback is lost or counted twice, each is learned from the state before it, and
// nothing that was once shown is taken back. See past for the guarantees.
func TestHistoriesOverRedis(t *testing.T) {
	r := statetest.NewRedis(t)
	h := &history{t: t, began: time.Now(), redis: r}
	for i := range h.servers {
		// The test does not wait for this time to pass: see recovered.
		store, err := state.Open(t.Context(), r.Target(), state.Options{Settle: time.Hour, Required: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { store.Close() })
		h.stores[i], h.servers[i] = store, registry(t, store)
	}
	h.recovered()
	if _, err := h.servers[0].Create(t.Context(),
		Definition{Name: learning, Models: []string{"a", "b"}, Policy: "exp3"}); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "both servers have the application", func() bool { return h.servers[1].Find(learning) != nil })
	for n := range *histories {
		h.make(n)
		for key, calls := range h.calls {
			checkPast(t, key, calls)
		}
		if t.Failed() {
			return
		}
	}
}

const learning = "learning" // the application whose policy is taught

const (
	learners = 6 // clients that give feedback, for this many users:
	taught   = 2
	definers = 2 // clients that change, make and delete an application
)

// A history records the answers that clients got.
type history struct {
	t       *testing.T
	began   time.Time
	redis   *statetest.Redis
	stores  [2]state.Store
	servers [2]*Registry

	trying  sync.RWMutex  // held for reading by each try
	stop    chan struct{} // closed when clients must end
	learned atomic.Int64
	failed  atomic.Int64 // tries

	mu    sync.Mutex
	calls map[string][]porcupine.Operation // by key
}

// make makes a history, with its own keys.
func (h *history) make(n int) {
	h.calls, h.stop = map[string][]porcupine.Operation{}, make(chan struct{})
	var clients sync.WaitGroup
	for i := range learners + definers {
		clients.Go(func() {
			for k := 0; !h.stopped(); k++ {
				id := fmt.Sprintf("%d.%d", i, k)
				if i < learners {
					h.learn(fmt.Sprintf("%d.%d", n, i%taught), id)
				} else {
					h.define(fmt.Sprint("changing", n), id)
				}
			}
		})
	}
	defer clients.Wait()
	defer close(h.stop)
	for _, happens := range []func(){func() {}, h.breaks, h.hangs, h.dies} {
		happens()
		was := h.learned.Load()
		budgettest.Until(h.t, "learning goes on", func() bool { return h.learned.Load() > was+10*learners })
	}
}

func (h *history) stopped() bool {
	select {
	case <-h.stop:
		return true
	default:
		return false
	}
}

// breaks cuts all connections.
func (h *history) breaks() {
	h.redis.Do(h.t, "client", "kill", "type", "pubsub")
	h.redis.Do(h.t, "client", "kill", "type", "normal")
}

// hangs stops Redis from answering until the learners have given up tries. Then Redis executes the
// commands that it received meanwhile.
func (h *history) hangs() {
	h.redis.Stop(h.t)
	was := h.failed.Load()
	budgettest.Until(h.t, "tries fail", func() bool { return h.failed.Load() >= was+learners })
	h.redis.Continue()
}

// dies restarts Redis without its data. The servers restore what they know.
func (h *history) dies() {
	h.redis.Kill()
	for _, s := range h.stores {
		budgettest.Until(h.t, "Redis is away", func() bool { return s.Health().Err != nil })
	}
	func() {
		h.trying.Lock() // the servers have taken in all earlier answers
		defer h.trying.Unlock()
		h.redis.Start(h.t)
	}()
	h.recovered()
}

// recovered ends the hold of updates, which waits for all servers to restore what they know: it
// does so once they have, not after a fixed time.
func (h *history) recovered() {
	for _, s := range h.stores {
		budgettest.Until(h.t, "Redis is back", func() bool { return s.Health().Err == nil })
	}
	h.redis.Do(h.t, "hset", "shivad:meta", "hold", "0")
}

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add records a call with its times and the answer that it got.
func (h *history) add(key string, c call, began, ended int64, told string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls[key] = append(h.calls[key],
		porcupine.Operation{ClientId: len(h.calls[key]), Input: c, Call: began, Output: told, Return: ended})
}

// showed records that a server has shown a text since that time.
func (h *history) showed(key string, server int, since int64, text string) {
	h.add(key, call{what: fmt.Sprint("read at ", server), server: server}, since, h.now(), text)
}

// try makes a call to the store.
func (h *history) try(patience time.Duration, call func(context.Context) error) error {
	h.trying.RLock()
	defer h.trying.RUnlock()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	err := call(ctx)
	if errors.Is(err, scheduler.ErrUnavailable) {
		h.failed.Add(1)
	}
	return err
}

// learn gives feedback to either server, again and again until one reports that it is learned: that
// is one change, at some time since the first try. Then it reads the state from either server.
func (h *history) learn(user, id string) {
	key := "policy for " + user
	given := []selection.Prediction{{Ask: selection.Ask{Model: ab[rand.N(len(ab))], Probability: 0.5}}}
	outcome := selection.ByLoss(rand.Float64())
	c := call{what: "learn " + id, change: func(now string) (string, bool) {
		var old []byte
		if now != "" {
			old = []byte(now)
		}
		s, err := h.servers[0].teach(h.servers[0].Find(learning), old, ab, Judged{Predictions: given, Outcome: outcome})
		return learnedText(s), err == nil
	}}
	for began := h.now(); ; time.Sleep(time.Millisecond) {
		if h.stopped() {
			h.add(key, c, began, never, unknown)
			return
		}
		server, tried := rand.N(len(h.servers)), h.now()
		r := h.servers[server]
		var s selection.State
		var applied bool
		err := h.try(100*time.Millisecond, func(ctx context.Context) (err error) {
			s, applied, err = r.Learn(ctx, r.Find(learning), ab, Judged{user, id, given, outcome})
			return err
		})
		if errors.Is(err, scheduler.ErrUnavailable) {
			continue
		}
		if err != nil {
			h.t.Errorf("learning: %v", err)
			return
		}
		told := unknown // an earlier try was learned
		if applied {
			told = learnedText(s)
		}
		h.add(key, c, began, h.now(), told)
		h.showed(key, server, tried, learnedText(s))
		break
	}
	h.learned.Add(1)
	server, asked := rand.N(len(h.servers)), h.now()
	s, err := h.servers[server].State(h.servers[server].Find(learning), user, ab)
	if err != nil {
		h.t.Error(err)
		return
	}
	h.showed(key, server, asked, learnedText(s))
}

// learnedText returns a state as the store has it; "" if nothing was learned.
func learnedText(s selection.State) string {
	if s.Rounds == 0 {
		return ""
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// define changes, makes or deletes an application at either server, and reads the result from
// either. Such a change has no id, so it is not retried. The checker has to try all orders of
// changes without an answer, so there must be few: define uses a longer timeout, and waits while
// Redis is unreachable.
func (h *history) define(name, id string) {
	key := "definition of " + name
	server, began := rand.N(len(h.servers)), h.now()
	r := h.servers[server]
	var a *App
	var c call
	var ask func(context.Context) error
	switch rand.N(6) {
	case 0:
		c = call{what: "delete", change: func(now string) (string, bool) { return "", now != "" }}
		ask = func(ctx context.Context) error { return r.Delete(ctx, name) }
	case 1:
		c = call{what: "create " + id, change: func(now string) (string, bool) { return signed("", id), now == "" }}
		ask = func(ctx context.Context) (err error) {
			a, err = r.Create(ctx, Definition{Name: name, Models: []string{"a"}, Default: json.RawMessage(signed("", id))})
			return err
		}
	default:
		c = call{what: "change " + id, mark: strconv.Quote(id),
			change: func(now string) (string, bool) { return signed(now, id), now != "" }}
		ask = func(ctx context.Context) (err error) {
			a, err = r.Change(ctx, name, func(d *Definition) error {
				d.Default = json.RawMessage(signed(string(d.Default), id))
				return nil
			})
			return err
		}
	}
	switch err := h.try(time.Second/2, ask); {
	case err == nil:
		told := definedText(a)
		h.add(key, c, began, h.now(), told)
		h.showed(key, server, began, told)
	case errors.Is(err, scheduler.ErrNotFound), errors.Is(err, composite.ErrExists):
		h.add(key, c, began, h.now(), refused)
	case errors.Is(err, scheduler.ErrUnavailable):
		h.add(key, c, began, never, unknown)
		for h.stores[server].Health().Err != nil && !h.stopped() {
			time.Sleep(time.Millisecond)
		}
	default:
		h.t.Errorf("%s: %v", c.what, err)
	}
	server, asked := rand.N(len(h.servers)), h.now()
	h.showed(key, server, asked, definedText(h.servers[server].Find(name)))
}

// signed adds the id of a change to the default output of an application.
func signed(text, id string) string {
	var by struct {
		By []string `json:"by"`
	}
	if text != "" && json.Unmarshal([]byte(text), &by) != nil {
		return "not as it was written: " + text
	}
	by.By = append(by.By, id)
	next, err := json.Marshal(by)
	if err != nil {
		return err.Error()
	}
	return string(next)
}

// definedText returns the ids of the changes of an application; "" if it does not exist.
func definedText(a *App) string {
	if a == nil {
		return ""
	}
	return string(a.Default)
}
