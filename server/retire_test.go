package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// version connects a container of model "rolled".
func version(t *testing.T, s *Server, v string) *containertest.Container {
	t.Helper()
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: "rolled", Version: v, Inputs: x, Outputs: x,
		Answer: func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Delay: time.Millisecond}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestRollingVersions: under load, version 2 takes over when it is ready, version 1 gets a goodbye
// when its time is up, and comes back when the operator makes it the default. No request fails.
func TestRollingVersions(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: 100 * time.Millisecond}}
	})
	first := version(t, s, "1")

	load := keepBusy(t, s, "rolled", 4)
	defer load.stop()
	is := func(v string) func() bool { return func() bool { return load.version.Load() == v } }
	patch := func(body, want string) {
		t.Helper()
		if status, got := requestAdmin(t, s, http.MethodPatch, "/v1/models/rolled", jsonType,
			body); !strings.Contains(got, want) {
			t.Errorf("%s: %d %s, expected %s", body, status, got, want)
		}
	}

	budgettest.Until(t, "version 1", is("1"))
	version(t, s, "2")
	budgettest.Until(t, "version 2", is("2"))
	select {
	case <-first.Gone():
	case <-time.After(20 * time.Second):
		t.Fatal("version 1 was not told goodbye")
	}
	budgettest.Until(t, "version 1 to be explained as replaced", func() bool {
		absence := map[string]string{}
		for _, h := range s.report.Status().Models {
			absence[h.Version] = h.Absence
		}
		if absence["1"] != "replaced by version 2" || absence["2"] != "" {
			return false
		}
		for _, e := range s.report.Explain("rolled") {
			if e.Version == "1" {
				text := strings.Join(e.Sentences, "\n")
				return strings.Contains(text, "Requests to rolled are answered by version 2; only those that name rolled/1 are refused.") &&
					!strings.Contains(text, "every request is refused")
			}
		}
		return false
	})
	patch(`{"default_version":"1"}`, `no container serves version \"1\" of model \"rolled\"; ready: \"2\"`)

	// Back to 1, which is started again, and is not dismissed while it is the default.
	patch(`{"retire_after":"1h"}`, `"default_version": "2"`)
	again := version(t, s, "1")
	budgettest.Until(t, "version 1 to be ready", func() bool { return serves(s, "rolled", "1") })
	patch(`{"default_version":"1"}`, `"default_version": "1"`)
	budgettest.Until(t, "version 1 again", is("1"))
	patch(`{"retire_after":"1ms"}`, `"default_version": "1"`)
	version(t, s, "3")
	budgettest.Until(t, "version 3 to be ready", func() bool { return serves(s, "rolled", "3") })
	<-version(t, s, "0").Gone() // by then all due versions have been dismissed
	select {
	case <-again.Gone():
		t.Error("the default version was sent away")
	default:
	}
	// Not from the load's last answer: one of its clients may record an old answer late.
	if a, _ := say(t, s, "rolled", "{}", pairOfInts(t)); a["model_version"] != "1" {
		t.Errorf("served by %v, expected version 1", a)
	}
	patch(`{"default_version":""}`, `"default_version": "3"`)
	budgettest.Until(t, "version 3", is("3"))
	var list struct {
		Versions []struct {
			Version string
			Ready   bool
		}
	}
	budgettest.Until(t, "all but version 3 to go", func() bool {
		get(t, s, "/v1/models/rolled", &list)
		ready := ""
		for _, v := range list.Versions {
			if v.Ready {
				ready += v.Version
			}
		}
		return ready == "3"
	})
	t.Logf("%d requests", load.answered.Load())
}

// TestRetireWithoutGoodbye: replaced containers of RPC v3, which has no goodbye message, are not
// disconnected. They stay, idle, the status shows it, and their version can serve again at once.
func TestRetireWithoutGoodbye(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: 20 * time.Millisecond}}
	})
	number := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	hungUp := make(chan error, 2)
	legacy := func() {
		t.Helper()
		raw, err := net.Dial("tcp", s.Addrs().Containers[0].String())
		if err != nil {
			t.Fatal(err)
		}
		p, err := containertest.NewPeer(raw)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		if err := p.Send(nil, number(0), []byte("rolled"), []byte("1"), []byte("1"), number(3)); err != nil {
			t.Fatal(err)
		}
		go func() { // ends when the connection does
			_, err := p.Receive()
			hungUp <- err
		}()
	}
	are := func(state string, n int) {
		t.Helper()
		budgettest.Until(t, fmt.Sprintf("%d containers are %s", n, state), func() bool {
			found := 0
			for _, k := range s.containers.List() {
				if k.RPC == "v3" && k.State == state && strings.Contains(k.Reason, "no goodbye message") == (state == "retired") {
					found++
				}
			}
			return found == n
		})
	}
	legacy()
	are("serving", 1)
	version(t, s, "2")
	are("retired", 1)
	if _, _, err := s.settings.Set(t.Context(), "rolled", texts("default_version", "1")); err != nil {
		t.Errorf("taking version 1 back: %v", err)
	}
	are("serving", 1)
	if _, _, err := s.settings.Set(t.Context(), "rolled", texts("default_version", "")); err != nil {
		t.Error(err)
	}
	are("retired", 1)
	legacy() // another one of the replaced version
	are("retired", 2)
	select {
	case err := <-hungUp:
		t.Errorf("a container was hung up on: %v", err)
	default:
	}
	if n := s.containers.Listener().Stats().Accepted; n != 3 {
		t.Errorf("%d connections, expected 3", n)
	}
}

// A version stays alongside the default for as long as an application links to it; others are
// retired.
func TestLinkedVersionsStay(t *testing.T) {
	for _, links := range [][]string{{"rolled/1", "rolled"}, {"rolled/*"}} {
		s := start(t, func(c *config.Config) {
			c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: time.Millisecond}}
		})
		gone := func(c *containertest.Container, patience time.Duration) bool {
			select {
			case <-c.Gone():
				return true
			case <-time.After(patience):
				return false
			}
		}
		if _, err := registry(t, s).Create(t.Context(),
			apps.Definition{Name: "app", Models: links, Policy: "exp4"}); err != nil {
			t.Fatal(err)
		}
		oldest, linked := version(t, s, "0"), version(t, s, "1")
		version(t, s, "2")
		budgettest.Until(t, "version 2 to serve", func() bool { return serves(s, "rolled", "2") })
		if links[0] == "rolled/1" && !gone(oldest, 20*time.Second) {
			t.Errorf("version 0 stays, and the application links to %q", links)
		}
		if gone(linked, 50*time.Millisecond) {
			t.Errorf("version 1 was sent away, and the application links to %q", links)
		}
		if err := registry(t, s).Delete(t.Context(), "app"); err != nil {
			t.Fatal(err)
		}
		if !gone(linked, 20*time.Second) {
			t.Error("version 1 stays, and nothing links to it any more")
		}
	}
}

// called returns a container of RPC v0 that ends when it gets a goodbye.
func called(t *testing.T) config.Container {
	t.Helper()
	ear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ear.Close() })
	go func() { // ends with ear
		for {
			c, err := ear.Accept()
			if err != nil {
				return
			}
			goodbye := make([]byte, 5)
			if _, err := io.ReadFull(c, goodbye); err == nil {
				_, _ = c.Write([]byte{0xd2, 4, 0, 0}) // the answer to it
			}
			c.Close()
		}
	}()
	return config.Container{Name: "called", Address: "tcp://" + ear.Addr().String(), RPC: "v0", Model: "rolled",
		Version: "1",
		Input:   "ints", Process: config.Process{Replicas: config.Fixed(1), StopTimeout: 10 * time.Second}}
}

// calledState returns the state of the only called container.
func calledState(s *Server) string {
	list := s.containers.List()
	return list[len(list)-1].State
}

// TestRetiredCalledContainer: a called container that got a goodbye is no longer called, and is not
// shown as serving.
func TestRetiredCalledContainer(t *testing.T) {
	t.Parallel() // it waits
	far := called(t)
	s := start(t, func(c *config.Config) {
		c.Models = map[string]config.Model{"rolled": {Policy: c.Defaults, RetireAfter: 200 * time.Millisecond}}
		c.Supervised = []config.Container{far}
	})
	is := func(state string) func() bool {
		return func() bool { return s.sources().Containers.List().Containers[0].State == state }
	}
	budgettest.Until(t, "version 1 to be ready", is("READY"))
	version(t, s, "2")
	budgettest.Until(t, "version 1 to be gone", func() bool { return calledState(s) == "ended" })
	if c := s.sources().Containers.List().Containers[0]; c.State != "UNAVAILABLE" || c.Reason != "not connected" {
		t.Errorf("it is shown as %s (%s)", c.State, c.Reason)
	}
}
