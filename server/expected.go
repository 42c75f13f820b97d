package server

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/containers"
)

// Which unknown models may soon be known. Clients try again after Unavailable and give up after
// NotFound, so a name is NotFound only when it is not merely early.

// An expectation is the beginning of a time in which containers are expected to connect.
type expectation struct {
	from time.Time
	what string // what the server did then

	// Whether containers have registered since then that are new, and that were registered before.
	newcomers, returned atomic.Bool
}

const hasStarted = "started"

// expect begins a time in which containers may still be connecting: those of a server that was
// started again have noticed that they lost it, and wait for some seconds before they try again.
func (s *Server) expect(what string) { s.expected.Store(&expectation{from: time.Now(), what: what}) }

// arrived notes that a container has registered. Processes of the server itself tell nothing: they
// are new after each start.
func (s *Server) arrived(i containers.SessionInfo) {
	e := s.expected.Load()
	switch {
	case e == nil || i.Again == nil || i.Party.Process != "":
	case *i.Again:
		e.returned.Store(true)
	default:
		e.newcomers.Store(true)
	}
}

// awaited says why a model, "name" or "name/version", that is not known may come; "": nobody
// expects it. guessed: only because it is early.
func (s *Server) awaited(id string) (why string, guessed bool) {
	if why = cmp.Or(s.report.Awaited(id), s.history.Awaited(id)); why != "" {
		return why, false
	}
	return s.early(id), true
}

// early is awaited for names of which nothing is known but that it is early, and that containers
// may register them. If those that have come are new, the server was not started again under
// running containers: no client has lost a model, and who asks for an unknown one has mistaken its
// name.
func (s *Server) early(id string) string {
	e := s.expected.Load()
	if e == nil || len(s.containers.Listener().Addrs()) == 0 || !s.identities.AnyServes(id) {
		return ""
	}
	if e.what == hasStarted && e.newcomers.Load() && !e.returned.Load() {
		return ""
	}
	age := time.Since(e.from)
	if age >= s.settings.Now().Containers.ExpectedWithin {
		return ""
	}
	return fmt.Sprintf("no container has registered %s, and this server %s %v ago: containers may still be connecting",
		id, e.what, age.Round(100*time.Millisecond))
}
