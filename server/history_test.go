package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/state"
)

// lines are the events of a name, without times, servers and ports.
func lines(t *testing.T, s *Server, name string) (list []string) {
	t.Helper()
	h, err := s.told(name)
	if err != nil {
		if _, ok := errors.AsType[*admin.Error](err); !ok {
			t.Fatal(err)
		}
	}
	for _, e := range h.Events {
		line := strings.TrimSpace(e.What + " " + e.Version)
		if e.Until != nil {
			line += " ended"
		}
		if e.Registrations > 0 {
			line += fmt.Sprintf(" by %d", e.Registrations)
		}
		if strings.Contains(e.By, "127.0.0.1:") {
			line += " from 127.0.0.1"
		}
		if e.Detail != "" {
			line += ": " + e.Detail
		}
		list = append(list, line)
	}
	return list
}

// What served when, who registered it and who changed it outlives the server, also one that was killed.
func TestHistorySurvives(t *testing.T) {
	at := filepath.Join(t.TempDir(), "state")
	run := func() *Server { return start(t, func(c *config.Config) { c.State.At = at }) }
	is := func(s *Server, name string, want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("the history of %s to be %q; it is %q", name, want, lines(t, s, name)), func() bool { return fmt.Sprint(lines(t, s, name)) == fmt.Sprint(want) })
	}
	s := run()
	one := version(t, s, "1")
	is(s, "rolled", "served 1 by 1 from 127.0.0.1", "default 1")
	is(s, "echo", "served 1", "default 1")
	version(t, s, "2")
	is(s, "rolled", "served 1 by 1 from 127.0.0.1", "default 1", "served 2 by 1 from 127.0.0.1", "default 2")
	o := operator{t, s}
	o.expect("PUT", "/v1/models/rolled/default_version", `{"version":"1"}`, 200)
	changed := `changed from 127.0.0.1: model: {"default_version":""} → {"default_version":"1"}`
	is(s, "rolled", "served 1 by 1 from 127.0.0.1", "default 1", "served 2 by 1 from 127.0.0.1", "default 2", changed, "default 1")
	one.Close()
	version(t, s, "1").Close() // back at once: it goes on, and is gone again
	is(s, "rolled", "served 1 ended by 2 from 127.0.0.1", "default 1", "served 2 by 1 from 127.0.0.1", "default 2", changed, "default 1")
	o.expect("POST", "/v1/apps", `{"name":"app","models":["rolled"]}`, 201)
	o.expect("GET", "/v1/history/rolled", "", 200, `"what":"served"`)
	o.expect("GET", "/v1/history/none", "", 404, "nothing is written")
	eventually(t, "the application's history", func() bool { l := lines(t, s, "app"); return len(l) == 1 && strings.Contains(l[0], `"name":"app"`) })
	stop(t, s)

	s = run()
	is(s, "rolled", "served 1 ended by 2 from 127.0.0.1", "default 1", "served 2 ended by 1 from 127.0.0.1", "default 2", changed, "default 1")
	is(s, "echo", "served 1", "default 1")

	// A server that is killed writes no end.
	version(t, s, "3")
	eventually(t, "version 3 to be written", func() bool { return strings.Contains(fmt.Sprint(lines(t, s, "rolled")), "served 3 by 1") })
	e, err := s.store.Get(state.Key("history", "rolled"))
	if err != nil {
		t.Fatal(err)
	}
	stop(t, s)
	store, err := state.Open(t.Context(), at, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(t.Context(), e.Key, "", func([]byte) ([]byte, error) { return e.Value, nil }); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s = run()
	eventually(t, "what was left open to be closed", func() bool {
		return strings.Contains(fmt.Sprint(lines(t, s, "rolled")), "served 3 ended by 1 from 127.0.0.1: until the server was killed")
	})
}

// However much comes and goes, a name has no more than its hundred events, and the store no more than its names; those that serve stay.
func TestHistoryIsBounded(t *testing.T) {
	store, err := state.NewMemory(state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	s := &Server{store: store, log: slog.New(slog.DiscardHandler), history: newChronicle()} // not started: nobody else writes
	h := &s.history
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
	echo := serving{versions: map[string]bool{"1": true}, standard: "1"}
	at := time.Now()
	for i := range 3 * maxEvents { // a version that is back after more than the gap, again and again
		at = at.Add(2 * historyGap)
		now := map[string]serving{"echo": echo, "rolled": {versions: map[string]bool{"1": i%2 == 0}}}
		if i%2 == 1 {
			delete(now["rolled"].versions, "1")
		}
		if _, err := s.writeHistory(t.Context(), now, at); err != nil {
			t.Fatal(err)
		}
	}
	if n := count("rolled"); n != maxEvents {
		t.Errorf("%d events, expected %d", n, maxEvents)
	}
	for i := range maxHistories + 100 {
		at = at.Add(time.Second)
		h.arrivedAs(scheduler.ModelID{Name: fmt.Sprint("n", i), Version: "1"}, "somebody")
		if _, err := s.writeHistory(t.Context(), map[string]serving{"echo": echo}, at); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := s.store.List(historyPrefix)
	if err != nil || len(entries) != maxHistories || count("echo") != 2 {
		t.Errorf("%d histories, %v, expected %d; echo's: %d", len(entries), err, maxHistories, count("echo"))
	}
	for _, e := range entries {
		var events []admin.Event
		if err := json.Unmarshal(e.Value, &events); err != nil || len(events) == 0 {
			t.Errorf("%s: %v %s", e.Key, err, e.Value)
		}
	}
	for range 2 * maxHistories { // while nothing can be written
		h.arrivedAs(scheduler.ModelID{Name: fmt.Sprint("w", len(h.came)), Version: "1"}, "somebody")
		for range 3 {
			h.tell("one", admin.Event{What: "changed"})
		}
	}
	if len(h.came) > maxHistories || len(h.told["one"]) > maxEvents {
		t.Errorf("%d arrivals and %d changes wait", len(h.came), len(h.told["one"]))
	}
}
