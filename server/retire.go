package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A retirement is the state of retire: which versions are on their way out.
type retirement struct {
	poke  chan struct{} // holds one: something changed
	since map[scheduler.ModelID]time.Time
}

// wake makes retire look again. It may be called from anywhere and does not block.
func (r *retirement) wake() {
	select {
	case r.poke <- struct{}{}:
	default: // it will look anyway
	}
}

// retireAgain is when a version that should go and has rows waiting is looked at again.
const retireAgain = 50 * time.Millisecond

// retire says goodbye to the containers of versions that are older than a ready default, when they have been so for the
// model's retire_after and none of their rows is waiting. It ends with the server.
//
// The pause is not only the operator's time to think better of it (shivactl models set-version): requests that were on their way to the old
// version when the new one came are served by it.
func (s *Server) retire() {
	s.retiring.since = make(map[scheduler.ModelID]time.Time)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var parting sync.WaitGroup
	defer parting.Wait()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for {
		select {
		case <-s.stopping:
			return
		case <-s.retiring.poke:
		case <-timer.C:
		}
		due, next := s.overdue(time.Now())
		for _, id := range due {
			reason := fmt.Sprintf("version %s of %s is replaced by a newer one", id.Version, id.Name)
			n := s.containers.Retire(id, reason)
			for _, d := range s.dialers {
				if d.Model() == id {
					n++
					parting.Go(func() { _ = d.Shutdown(ctx) })
				}
			}
			s.log.Info("version retired", "model", id.String(), "containers", n)
		}
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// overdue returns the versions to retire now, and when to look again; 0 for when something changes.
func (s *Server) overdue(now time.Time) (due []scheduler.ModelID, next time.Duration) {
	again := func(d time.Duration) {
		if next == 0 || d < next {
			next = d
		}
	}
	replaced := make(map[scheduler.ModelID]time.Time)
	ready := ""                         // the model whose default has been passed and is ready: what follows of it is older
	for _, m := range s.gate.Models() { // the newest version first
		if m.Default && m.Ready {
			ready = m.Name
			continue
		}
		after := s.settings.Load().Model(m.Name).RetireAfter
		if m.Name != ready || !m.Ready || after == 0 {
			continue
		}
		id := scheduler.ModelID{Name: m.Name, Version: m.Version}
		since, known := s.retiring.since[id]
		if !known {
			since = now
		}
		if wait := after - now.Sub(since); wait > 0 {
			again(wait)
		} else if model, ok := s.sched.Model(id); ok && model.Stats().QueueRows > 0 {
			again(retireAgain)
		} else {
			due = append(due, id)
			continue
		}
		replaced[id] = since
	}
	s.retiring.since = replaced
	return due, next
}
