package operate

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/state"
)

// However much changes, a name has at most a hundred events, and the store at most maxHistories
// names; names that are served stay.
func TestHistoryIsBounded(t *testing.T) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	opening := NewStore(config.State{}, OpenState, nil)
	opening.backend.Store(&backend{store: store})
	// Run is not called: nothing else writes.
	h := NewHistory(opening, nil, nil, time.Now(), nil, slog.New(slog.DiscardHandler))
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
		if _, err := h.write(t.Context(), now, at); err != nil {
			t.Fatal(err)
		}
	}
	if n := count("rolled"); n != maxEvents {
		t.Errorf("%d events, expected %d", n, maxEvents)
	}
	for i := range maxHistories + 100 {
		at = at.Add(time.Second)
		h.arrivedAs(scheduler.ModelID{Name: fmt.Sprint("n", i), Version: "1"}, "somebody")
		if _, err := h.write(t.Context(), map[string]servedVersions{"echo": echo}, at); err != nil {
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
