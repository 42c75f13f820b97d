package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/state"
)

// served returns what write asks for.
func served(now map[string]servedVersions) func() map[string]servedVersions {
	return func() map[string]servedVersions { return now }
}

// A watched store does something before an update of a key; an error is that of the update.
type watchedStore struct {
	state.Store
	before func(ctx context.Context, key string) error
}

func (s watchedStore) Update(ctx context.Context, key, id string,
	change func([]byte) ([]byte, error)) (state.Entry, error) {
	if err := s.before(ctx, key); err != nil {
		return state.Entry{}, err
	}
	return s.Store.Update(ctx, key, id, change)
}

// historyIn returns a history in a store; Run is not called.
func historyIn(t *testing.T, store state.Store) *History {
	opening := NewStore(config.State{}, OpenState, nil)
	opening.backend.Store(&backend{store: store})
	return NewHistory(opening, nil, nil, time.Now(), nil, slog.New(slog.DiscardHandler))
}

// What an operator has asked for meanwhile is newer than what write has looked at: it stays.
func TestHistoryKeepsTheNewest(t *testing.T) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	is := func(version string) servedVersions {
		return servedVersions{versions: map[string]bool{version: true}, standard: version}
	}
	var h *History
	asks := false
	h = historyIn(t, watchedStore{store, func(ctx context.Context, key string) error {
		if asks && key == state.Key("history", "a") {
			h.writeAsked(ctx, "b", is("2")) // turn is held for "a"
		}
		return nil
	}})
	write := func(a, b string) {
		now := map[string]servedVersions{"a": is(a), "b": is(b)}
		if _, err := h.write(t.Context(), served(now), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	write("1", "0")
	h.addEvent("b", admin.Event{What: "changed"}) // so that write writes both
	asks = true
	write("2", "1")
	asks = false
	write("2", "2")
	e, err := store.Get(state.Key("history", "b"))
	if err != nil {
		t.Fatal(err)
	}
	var events []admin.Event
	err = json.Unmarshal(e.Value, &events)
	var list []string
	for _, e := range events {
		list = append(list, e.What+" "+e.Version)
	}
	want := "[served 0 default 0 changed  served 2 default 2]"
	if fmt.Sprint(list) != want || err != nil {
		t.Errorf("%v (%v), expected %s", list, err, want)
	}
}

// A store that hangs keeps no operator from what it has, and questions do not wait one after the
// other.
func TestHistoryOfAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := state.NewMemory(state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		hangs := false
		h := historyIn(t, watchedStore{store, func(ctx context.Context, _ string) error {
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		h.gate = gate.New(gate.Config{})
		h.addEvent("a", admin.Event{What: "changed"})
		if _, err := h.write(t.Context(), served(nil), time.Now()); err != nil {
			t.Fatal(err)
		}
		hangs = true
		h.addEvent("a", admin.Event{What: "changed"})
		ctx, cancel := context.WithTimeout(t.Context(), historyRetry)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() { _, _ = h.write(ctx, served(nil), time.Now()) })
		synctest.Wait()
		began := time.Now()
		for range 8 {
			all.Go(func() {
				got, err := h.Of("a")
				if took := time.Since(began); err != nil || len(got.Events) != 1 || took > historyWait {
					t.Errorf("%+v, %v after %v", got, err, took)
				}
			})
		}
		all.Wait()
	})
}

// However much changes, a name has at most a hundred events, and the store at most maxHistories
// names; names that are served stay.
func TestHistoryIsBounded(t *testing.T) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	h := historyIn(t, store)
	count := func(name string) int {
		e, err := store.Get(state.Key("history", name))
		var events []admin.Event
		if err == nil && e.Value != nil {
			err = json.Unmarshal(e.Value, &events)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(events)
	}
	echo := servedVersions{versions: map[string]bool{"1": true}, standard: "1"}
	at := time.Now()
	// A version that returns after more than the gap, again and again.
	for i := range 3 * maxEvents {
		at = at.Add(2 * historyGap)
		now := map[string]servedVersions{"echo": echo, "rolled": {versions: map[string]bool{"1": i%2 == 0}}}
		if i%2 == 1 {
			delete(now["rolled"].versions, "1")
		}
		if _, err := h.write(t.Context(), served(now), at); err != nil {
			t.Fatal(err)
		}
	}
	if n := count("rolled"); n != maxEvents {
		t.Errorf("%d events, expected %d", n, maxEvents)
	}
	for i := range maxHistories + 100 {
		at = at.Add(time.Second)
		h.arrivedAs(scheduler.ModelID{Name: fmt.Sprint("n", i), Version: "1"}, "somebody")
		if _, err := h.write(t.Context(), served(map[string]servedVersions{"echo": echo}), at); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := store.List(historyPrefix)
	if err != nil || len(entries) != maxHistories || count("echo") != 2 {
		t.Errorf("%d histories, %v, expected %d; echo's: %d", len(entries), err, maxHistories, count("echo"))
	}
	for _, e := range entries {
		var events []admin.Event
		if err := json.Unmarshal(e.Value, &events); err != nil || len(events) == 0 {
			t.Errorf("%s: %v %s", e.Key, err, e.Value)
		}
	}
	for i := range 2 * maxHistories { // while nothing can be written
		h.arrivedAs(scheduler.ModelID{Name: "one", Version: fmt.Sprint(i)}, "somebody")
		h.arrivedAs(scheduler.ModelID{Name: fmt.Sprint("w", i), Version: "1"}, "somebody")
		for range 3 {
			h.addEvent("one", admin.Event{What: "changed"})
		}
	}
	if one := h.pending["one"]; len(h.pending) > maxHistories || len(one.changes) > maxEvents ||
		len(one.arrivals) > maxEvents {
		t.Errorf("of %d names, %d arrivals and %d changes of one wait", len(h.pending), len(one.arrivals),
			len(one.changes))
	}
}
