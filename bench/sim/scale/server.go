package main

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// The condition of a server or a container.
type condition uint8

const (
	up       condition = iota
	draining           // told to end; frames or batches are still to be answered
	killed             // the process has ended, which peers notice at once
	vanished           // the machine has, which peers notice by silence
)

const (
	drainTime = 2 * time.Second // of a server, at most
	restart   = 3 * time.Second // from the end of a process until the next one listens there
	newPod    = 30 * time.Second
	// forgotten is the time for which names still resolve to a failed machine: Kubernetes takes as
	// long to consider a node lost.
	forgotten = 40 * time.Second
	// Heartbeats are a second apart; three may be missed.
	silence = 3 * time.Second
	// Intervals at which a server stores its load, as in package server/internal/manage.
	demandEvery = 5 * time.Second
	demandAgain = 20 * time.Second
)

var errSession = errors.New("the session has ended")

// A server is a process with a scheduler.
type server struct {
	*world
	address  string
	number   int
	state    condition
	since    int64 // since when state holds
	sched    *scheduler.Scheduler
	model    *scheduler.Model // nil: no container has registered yet
	sessions []*session
	asked    int // frames without an answer

	need, written float64 // replicas: as Need returns it, and as stored
	writes        int64   // time of the last write
}

// serve starts a server at an address of its own.
func (w *world) serve() *server {
	n := len(w.servers)
	s := &server{world: w, number: n, address: fmt.Sprintf("10.%d.%d.%d:7000", n>>16, n>>8&255, n&255), writes: math.MinInt64 / 2}
	s.sched = w.newScheduler()
	w.servers = append(w.servers, s)
	w.byAddress[s.address] = s
	w.addresses = append(slices.Clone(w.addresses), s.address)
	return s
}

// delist removes a server from the addresses that the servers' name resolves to.
func (s *server) delist() {
	s.addresses = slices.DeleteFunc(slices.Clone(s.addresses), func(a string) bool { return a == s.address })
}

func (s *server) become(c condition) { s.state, s.since = c, s.clock.now }

// lives reports whether the server takes messages.
func (s *server) lives() bool { return s.state <= draining }

// ready reports whether streams may connect.
func (s *server) ready() bool { return s.state == up && len(s.sessions) > 0 }

// kill ends the process. Another one listens at its address soon after.
func (s *server) kill() {
	if s.state != up {
		return
	}
	s.become(killed)
	s.tell(s.way(), (*session).lost)
	s.clock.AfterFunc(restart, func() {
		s.sched, s.model, s.asked = s.newScheduler(), nil, 0
		s.become(up)
	})
}

// vanish ends the machine. Another server starts at another address.
func (s *server) vanish() {
	if s.state != up {
		return
	}
	s.become(vanished)
	s.tell(silence, (*session).lost)
	s.clock.AfterFunc(forgotten, s.delist)
	s.clock.AfterFunc(newPod, func() { s.serve() })
}

// tell makes the containers of all sessions notice, after a while, that the server is down.
func (s *server) tell(after time.Duration, notice func(*session)) {
	for _, n := range s.sessions {
		n.served = false
		s.clock.AfterFunc(after, func() { notice(n) })
	}
	s.sessions = nil
}

// drain ends the server after it has answered its frames: streams learn of it with their next
// frame, containers when nothing is left or the time is over.
func (s *server) drain() {
	if s.state != up {
		return
	}
	s.become(draining)
	s.delist()
	over := s.clock.since() + drainTime
	var look func()
	look = func() {
		if s.asked > 0 && s.clock.since() < over {
			s.clock.AfterFunc(20*time.Millisecond, look)
			return
		}
		s.become(killed)
		s.tell(s.way(), (*session).lost)
	}
	look()
}

// way is the delay of one message.
func (w *world) way() time.Duration {
	return w.Delay + time.Duration(float64(w.Jitter)*w.rng.ExpFloat64())
}

// register makes a session with a container.
func (s *server) register(c *container, l *link) {
	n := &session{server: s, container: c, link: l, served: true, open: true}
	options := scheduler.ReplicaOptions{Offer: n.offer}
	var err error
	n.replica, err = s.sched.AddReplica(scheduler.ModelID{Name: modelID, Version: "1"}, scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, n, options)
	if err != nil {
		s.fail(err)
		return
	}
	s.model = n.replica.Model()
	s.sessions = append(s.sessions, n)
	if c.choice.Trying() == s.address {
		s.tally.tried++
	} else {
		s.tally.begun++
	}
	l.session = n
	c.join(n)
}

// forget ends a session on the server's side.
func (s *server) forget(n *session) {
	if !n.served {
		return
	}
	n.served = false
	s.sessions = slices.DeleteFunc(s.sessions, func(o *session) bool { return o == n })
	n.replica.Remove(errSession)
}

// demand stores the server's load when that is due: see server/internal/manage.
func (s *server) demand() {
	s.need = 0
	if s.model != nil && s.lives() {
		s.need = s.model.Need().Load
	}
	same := math.Abs(s.need-s.written) <= 0.01*s.written
	if same && (s.need == 0 || s.clock.now-s.writes < int64(demandAgain)) {
		return
	}
	s.written, s.writes = s.need, s.clock.now
	s.traffic.now.Loads++
}
