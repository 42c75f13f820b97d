package main

import (
	"math"
	"time"
)

const (
	racks     = 20               // each server and each container is in one of them
	wave      = 10 * time.Second // from one wave of a roll to the next
	waveParts = 10               // of all servers, in a wave
	// ahead is the number of waves between the start of new servers and the end of the old ones
	// that they replace.
	ahead = 2
	// scaleEvery is the interval of KEDA's queries, and scaleTime the time until an added container
	// serves.
	scaleEvery = 5 * time.Second
	scaleTime  = 10 * time.Second
	// demandLife is the time for which the stored load of an unreachable server still counts.
	demandLife = 60 * time.Second
)

// happen schedules the fleet's events.
func (w *world) happen() {
	if w.Failing > 0 {
		w.clock.AfterFunc(w.from(), func() {
			w.failures(float64(w.Servers), func() { w.breaks(w.someServer(), nil) })
			w.failures(float64(w.Containers), func() { w.breaks(nil, w.someContainer()) })
		})
	}
	w.clock.AfterFunc(w.rise(), func() {
		if w.Rack > 0 {
			w.rack()
		}
		if w.Roll > 0 {
			w.roll()
		}
	})
}

// failures calls f at random times, of × Failing times per minute on average.
func (w *world) failures(of float64, f func()) {
	mean := float64(time.Minute) / (of * w.Failing)
	var next func()
	next = func() {
		w.clock.AfterFunc(time.Duration(mean*w.rng.ExpFloat64()), func() { f(); next() })
	}
	next()
}

// breaks ends a server or a container, every other time with its machine.
func (w *world) breaks(s *server, c *container) {
	as := killed
	if w.rng.IntN(2) == 0 {
		as = vanished
	}
	switch {
	case c != nil:
		c.end(as)
	case as == killed:
		s.kill()
	default:
		s.vanish()
	}
}

func (w *world) someServer() *server { return w.servers[w.rng.IntN(len(w.servers))] }

func (w *world) someContainer() *container { return w.containers[w.rng.IntN(len(w.containers))] }

// rack ends a part of all machines at once.
func (w *world) rack() {
	for _, s := range w.servers[:int(float64(w.Servers)*w.Rack+0.5)] {
		s.vanish()
	}
	for _, c := range w.containers[:int(float64(w.Containers)*w.Rack+0.5)] {
		c.end(vanished)
	}
}

// roll replaces servers in waves: new ones begin, and some time later as many old ones end.
func (w *world) roll() {
	old := w.servers[:int(float64(w.Servers)*w.Roll+0.5)]
	each := max(1, w.Servers/waveParts)
	for n := 0; n*each < len(old); n++ {
		part := old[n*each : min((n+1)*each, len(old))]
		w.clock.AfterFunc(time.Duration(n)*wave, func() {
			for range part {
				w.serve()
			}
		})
		w.clock.AfterFunc(time.Duration(n+ahead)*wave, func() {
			for _, s := range part {
				s.drain()
			}
		})
	}
}

// watch makes servers store their loads, and adds containers if the fleet scales.
func (w *world) watch() {
	var each func(s *server)
	each = func(s *server) {
		s.demand()
		w.clock.AfterFunc(demandEvery, func() { each(s) })
	}
	known := 0
	var find func()
	find = func() { // new servers
		for ; known < len(w.servers); known++ {
			s := w.servers[known]
			w.clock.AfterFunc(time.Duration(w.rng.Int64N(int64(demandEvery))), func() { each(s) })
		}
		w.clock.AfterFunc(demandEvery, find)
	}
	find()
	coming := 0
	var ask func()
	ask = func() {
		sum := 0.0
		for _, s := range w.servers {
			if s.state <= killed || w.clock.now-s.since < int64(demandLife) {
				sum += s.written
			}
		}
		had := 0
		for _, c := range w.containers {
			if c.state == up {
				had++
			}
		}
		needed := int(math.Ceil(sum - 1e-9))
		if w.tally.counts(w.clock.since()) {
			w.tally.res.Needed = append(w.tally.res.Needed, needed)
			w.tally.res.Had = append(w.tally.res.Had, had)
		}
		if more := needed - had - coming; w.Scale && more > 0 && w.clock.since() > w.from() {
			coming += more
			for range more {
				w.clock.AfterFunc(scaleTime, func() { coming--; w.contain() })
			}
		}
		w.clock.AfterFunc(scaleEvery, ask)
	}
	ask()
}
