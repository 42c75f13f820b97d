package server

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// lines returns the events of a name, without times, servers and ports.
func lines(t *testing.T, s *Server, name string) (list []string) {
	t.Helper()
	h, err := s.history.Of(name)
	if err != nil {
		if _, ok := errors.AsType[*operate.Error](err); !ok {
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

// The history (which versions served when, who registered and changed them) survives the server,
// even one that was killed.
func TestHistorySurvives(t *testing.T) {
	t.Parallel() // it waits
	at := filepath.Join(t.TempDir(), "state")
	run := func() *Server { return start(t, func(c *config.Config) { c.State.At = at }) }
	is := func(s *Server, name string, want ...string) {
		t.Helper()
		budgettest.Until(t, fmt.Sprintf("the history of %s to be %q; it is %q", name, want, lines(t, s, name)),
			func() bool { return fmt.Sprint(lines(t, s, name)) == fmt.Sprint(want) })
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
	if got := lines(t, s, "rolled"); !slices.Contains(got, changed) {
		t.Errorf("an operator who asks after a change finds %q", got)
	}
	is(s, "rolled", "served 1 by 1 from 127.0.0.1", "default 1", "served 2 by 1 from 127.0.0.1", "default 2", changed, "default 1")
	one.Close()
	version(t, s, "1").Close() // back at once, so its event continues; then it ends again
	is(s, "rolled", "served 1 ended by 2 from 127.0.0.1", "default 1", "served 2 by 1 from 127.0.0.1", "default 2",
		changed, "default 1")
	o.expect("POST", "/v1/apps", `{"name":"app","models":["rolled"]}`, 201)
	o.expect("GET", "/v1/history/rolled", "", 200, `"what":"served"`)
	o.expect("GET", "/v1/history/none", "", 404, "there is no history")
	if l := lines(t, s, "app"); len(l) != 1 || !strings.Contains(l[0], `"name":"app"`) {
		t.Errorf("the application's history is %q at once", l)
	}
	stop(t, s)

	s = run()
	is(s, "rolled", "served 1 ended by 2 from 127.0.0.1", "default 1", "served 2 ended by 1 from 127.0.0.1",
		"default 2", changed, "default 1")
	is(s, "echo", "served 1", "default 1")

	// A server that is killed writes no end.
	version(t, s, "3")
	var e state.Entry
	budgettest.Until(t, "version 3 to be written", func() bool {
		var err error
		if e, err = s.store.State().Get(state.Key("history", "rolled")); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(e.Value), `"version":"3"`)
	})
	stop(t, s)
	store, err := state.Open(t.Context(), at, state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Update(t.Context(), e.Key, "", func([]byte) ([]byte, error) {
		return e.Value, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	s = run()
	budgettest.Until(t, "what was left open to be closed", func() bool {
		return strings.Contains(fmt.Sprint(lines(t, s, "rolled")), "served 3 ended by 1 from 127.0.0.1: the server was killed")
	})
}

// After a restart, models that were served before are Unavailable, not NotFound, until their
// containers are back; versions that had been replaced, and other names, are NotFound.
func TestServedBeforeRestart(t *testing.T) {
	t.Parallel() // it waits
	at := filepath.Join(t.TempDir(), "state")
	run := func() *Server { return start(t, func(c *config.Config) { c.State.At = at }) }
	s := run()
	version(t, s, "1")
	budgettest.Until(t, "the history", func() bool { return len(lines(t, s, "rolled")) == 2 })
	stop(t, s)
	s = run()
	ask := func(name string) error {
		_, err := s.Infer(t.Context(),
			&Request{Name: name,
				Inputs: []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{1}, Data: make([]byte, 4)}}})
		return err
	}
	budgettest.Until(t, "the model to be Unavailable", func() bool {
		return errors.Is(ask("rolled"), scheduler.ErrUnavailable)
	})
	if err := ask("other"); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("a name that nobody knows: %v", err)
	}
}
