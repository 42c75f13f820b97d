package main

import (
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A frame is a request of one row of a stream.
type frame struct {
	scheduler.Request
	server *server
	sched  *scheduler.Scheduler // to which it was submitted: a restarted server has a new one
	at     int64
}

// connect connects a stream to a random server that accepts requests. A real client compares two
// random servers by its own waiting requests, of which a new stream has none.
func (w *world) connect(stream int) {
	for range 64 {
		if s := w.servers[w.rng.IntN(len(w.servers))]; s.ready() {
			if w.streams[stream] != nil {
				w.tally.moved++
			}
			w.streams[stream] = s
			return
		}
	}
}

// frame sends a frame of a stream.
func (w *world) frame(stream int) {
	w.tally.offered(w.clock.since())
	w.traffic.frame()
	s := w.streams[stream]
	if s == nil || s.state == killed || s.state == up && !s.ready() || s.state == vanished && w.clock.now-s.since > int64(noticed) {
		w.connect(stream)
		if s = w.streams[stream]; s == nil {
			return
		}
	}
	switch {
	case s.state == draining: // the server refuses, and the stream moves with its next frame
		w.connect(stream)
		return
	case s.state != up || s.model == nil:
		return
	}
	var f *frame
	if last := len(w.frames) - 1; last >= 0 {
		f, w.frames = w.frames[last], w.frames[:last]
	} else {
		f = &frame{}
		f.Inputs = append(f.Inputs, w.inputs...)
	}
	f.server, f.sched, f.at = s, s.sched, w.clock.now
	f.Model, f.Rows, f.Owner, f.Source = s.model, 1, f, uint64(stream)
	f.Deadline = w.clock.Now().Add(w.SLO)
	s.asked++
	s.sched.Submit(&f.Request)
}

// noticed is the time for which a stream waits for a failed machine: two seconds for an answer, and
// two more for one on another connection. See package shiva.
const noticed = 4 * time.Second

// Complete counts the answer.
func (f *frame) Complete(r *scheduler.Request) {
	s := f.server
	if s.sched == f.sched {
		s.asked--
		took := s.clock.now - f.at
		s.tally.answered(s.world, f.at, time.Duration(took), r.Err == nil && took <= int64(s.SLO) && s.lives())
	}
	s.frames = append(s.frames, f)
}
