package containers_test

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestResize: more processes start alongside the existing ones; a process that is to end is told
// only after it was drained, and is no longer shown; there may be none; after Close nothing starts.
func TestResize(t *testing.T) {
	t.Parallel() // it mostly waits
	cmd := child("obedient")
	cmd.StopTimeout = time.Minute // on a busy machine they end slowly
	s, log := supervise(t, cmd)
	running := func(n int) func() bool {
		return func() bool {
			list := s.Status()
			for i, p := range list {
				if p.PID == 0 || len(p.LastLines) < 2 || p.Replica != i {
					return false
				}
			}
			return len(list) == n
		}
	}
	budgettest.Until(t, "one to run", running(1))
	first := s.Status()[0].PID
	drained := make(chan struct{})
	drain := func(owned func(net.Conn) bool) <-chan struct{} { return drained }
	if !s.Resize(3, drain) {
		t.Fatal("not resized")
	}
	budgettest.Until(t, "three to run", running(3))
	list := s.Status()
	if list[0].PID != first {
		t.Error("the first was started again")
	}
	if !s.Resize(1, drain) || len(s.Status()) != 1 {
		t.Fatalf("not resized: %+v", s.Status())
	}
	// A process that was told to end would not be restarted.
	syscall.Kill(list[1].PID, syscall.SIGKILL)
	syscall.Kill(list[2].PID, syscall.SIGKILL)
	starts := func() int { return strings.Count(log.String(), "line=\"serving ") }
	budgettest.Until(t, "those to come back that are not drained", func() bool { return starts() == 5 })
	ends := func() int { return strings.Count(log.String(), "line=stopping") }
	if ends() > 0 {
		t.Error("one was told to end before it was drained")
	}
	close(drained)
	budgettest.Until(t, "the others to be told, and to end", func() bool { return ends() == 2 })
	if !alive(first) {
		t.Error("the first has ended")
	}
	if !s.Resize(0, drain) || len(s.Status()) != 0 {
		t.Errorf("not resized to none: %+v", s.Status())
	}
	budgettest.Until(t, "the first to end", func() bool { return !alive(first) })
	if !s.Resize(2, drain) {
		t.Error("not resized from none")
	}
	budgettest.Until(t, "two to run", running(2))
	list = s.Status()
	never := func(func(net.Conn) bool) <-chan struct{} { return nil }
	s.Resize(1, never)
	s.Close()
	if alive(list[0].PID) || alive(list[1].PID) {
		t.Error("they run after Close")
	}
	if s.Resize(1, drain) {
		t.Error("resized after Close")
	}
}
