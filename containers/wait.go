package containers

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
)

// Containers whose version is served with another declaration. One that knows how to wait stays
// connected, and is told to register again once there is a place for it; it would otherwise try
// again after a pause, which is long, since most refusals are for good.

// mostWaiting bounds the containers that wait: they hold connections of those that could serve.
// Further ones are refused as if they could not wait.
const mostWaiting = 64

// unplaced answers a registration that the scheduler has refused.
func (s *session) unplaced(r registration, reason error) error {
	s.reportRefusal(reason)
	taken, ok := errors.AsType[*scheduler.TakenError](reason)
	if !ok || !r.waits {
		return s.refuse(reason)
	}
	if !s.listener.mayWait(s) {
		return s.refuse(fmt.Errorf("%w (or wait: %d containers wait for places already)", reason, mostWaiting))
	}
	s.wait(r, taken)
	return nil
}

// wait tells the container to wait. From then on each tick looks whether there is a place for it.
// That is at most a heartbeat late, and needs no list of what may free a place: containers that
// leave, a process that does not come back in time, a model that is replaced.
func (s *session) wait(r registration, reason *scheduler.TakenError) {
	s.log(slog.LevelWarn, "container waits: its version is served with another declaration",
		"reason", errorText(reason))
	s.say(func(o *zmtp.Outgoing) bool { return say(o, wire.Wait, waitMessage(reason, s.settings)) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = false
	s.info.Waiting = errorText(reason)
	s.wants = r.spec
	s.machine.clocks.pauses = r.pauses
	_, _ = s.machine.step(evWaits, time.Now()) // never ends the session
	s.retimeLocked(0)
}

// look makes a container that waits register again if there is a place for it: the others of its
// version have left, or their declaration is its own.
func (s *session) look() {
	s.mu.Lock()
	id, spec := s.info.Model, s.wants
	s.mu.Unlock()
	if s.listener.cfg.Scheduler.HasPlace(id, spec) {
		s.retire(goodbye{reason: fmt.Sprintf("there is a place for %s now", id), reconnect: true})
	}
}

// mayWait counts a session among those that wait, unless there are mostWaiting already.
func (l *Listener) mayWait(s *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= mostWaiting {
		return false
	}
	l.waiting[s] = struct{}{}
	l.dropFreshLocked(s) // it has said who it is, and may serve the model
	return true
}
