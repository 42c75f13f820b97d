package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// A cell is one measurement in every round: a size, sent on a way to a system.
type cell struct {
	kind  *kind
	way   *way
	size  *size
	alone bool // one request at a time
}

// name is the cell's name in lines for benchstat.
func (c cell) name() string {
	in := "many"
	if c.alone {
		in = "one"
	}
	return fmt.Sprintf("system=%s/way=%s/size=%s/inflight=%s", c.kind.name, strings.ReplaceAll(c.way.name, ", ", "-"),
		c.size.model, in)
}

// A turn is the measurement of a cell in one round.
type turn struct {
	rate float64
	p50  time.Duration
	cpu  time.Duration // of the server's side, per frame
}

// A series is all turns of a cell.
type series struct {
	turns   []turn
	latency load.Histogram // of all rounds
}

// results are the series of a run.
type results map[cell]*series

// of returns the medians over the rounds, and the p99 of all of them.
func (r results) of(c cell) (m turn, p99 time.Duration, ok bool) {
	s := r[c]
	if s == nil || len(s.turns) == 0 {
		return m, 0, false
	}
	median := func(value func(turn) float64) float64 {
		var v []float64
		for _, t := range s.turns {
			v = append(v, value(t))
		}
		return ratio.Median(v)
	}
	m.rate = median(func(t turn) float64 { return t.rate })
	m.p50 = time.Duration(median(func(t turn) float64 { return float64(t.p50) }))
	m.cpu = time.Duration(median(func(t turn) float64 { return float64(t.cpu) }))
	return m, s.latency.Quantile(0.99), true
}

// plan returns the cells of a round in order: cells to be compared follow each other.
func (o *options) plan() (cells []cell) {
	for _, size := range sizes {
		for _, alone := range []bool{false, true} {
			for _, w := range ways {
				for _, k := range kinds {
					if !o.measures(k, w, size) || alone && !size.inTable && size != small {
						continue
					}
					if c := (cell{k, w, size, alone}); o.only == nil || o.only.MatchString(c.name()) {
						cells = append(cells, c)
					}
				}
			}
		}
	}
	return cells
}

// measures reports whether a size is sent to a server on a way: the table or a bar needs it.
func (o *options) measures(k *kind, w *way, s *size) bool {
	if k.peer != "" && o.peers == "" || !slices.Contains(k.ways, w) || !slices.Contains(k.sizes, s) {
		return false
	}
	switch {
	case s.inTable:
		return true
	case w != shivaTCP:
		return false
	case s == wide:
		return k == inGo || k == inPython
	default:
		return k != inGo
	}
}

// measure starts all systems and has them take turns.
func measure(ctx context.Context, o *options) (results, error) {
	systems := make(map[*kind]*system)
	defer func() {
		for _, s := range systems {
			s.Stop()
		}
	}()
	cells := o.plan()
	for _, k := range kinds {
		if !slices.ContainsFunc(cells, func(c cell) bool { return c.kind == k }) {
			continue
		}
		s, err := startSystem(ctx, k, o)
		if err != nil {
			return nil, err
		}
		systems[k] = s
	}
	all := make(results)
	for _, c := range cells {
		all[c] = new(series)
	}
	for round := range o.rounds {
		for _, c := range cells {
			if err := systems[c.kind].turn(ctx, o, c, all[c]); err != nil {
				return nil, fmt.Errorf("frames: round %d: %s, %s, %s: %w", round+1, c.kind.name, c.way.name,
					c.size.name, err)
			}
		}
		slices.Reverse(cells)
	}
	return all, nil
}

// offer offers the load of a cell once.
func (s *system) offer(ctx context.Context, o *options, c cell) (*load.Result, error) {
	l := c.way.config(c.size, c.alone, o.frames[c.way][c.size])
	l.Addr = s.addr(c.way)
	// The turn of a slow server is long enough to answer everything in flight twice. Turns of 24 MB
	// frames are four times as long as those of 6 MB frames, so that as many of both share the
	// fixed costs of a turn, such as its connections.
	l.Duration = max(o.duration, 2*time.Duration(l.Conns*l.InFlight)*s.takes[c.way][c.size])
	if c.size == wide {
		l.Duration = max(l.Duration, 4*o.duration)
	}
	l.Warmup, l.Grace = l.Duration/4, time.Minute
	r, err := load.Run(ctx, l)
	if err := errors.Join(err, s.Alive()); err != nil {
		return nil, err
	}
	if r.Failed > 0 || r.Lost > 0 || r.Taken == 0 {
		return nil, fmt.Errorf("%d answered, %d failed, %d lost: %s", r.Answered, r.Failed, r.Lost, r.Failure)
	}
	return r, nil
}

// turn measures a cell once.
func (s *system) turn(ctx context.Context, o *options, c cell, into *series) error {
	before, err := s.CPU()
	if err != nil {
		return err
	}
	r, err := s.offer(ctx, o, c)
	if err != nil {
		return err
	}
	after, err := s.CPU()
	if err != nil {
		return err
	}
	fmt.Print(r.Line("Frames/" + c.name()))
	into.latency.Merge(&r.Latency)
	into.turns = append(into.turns,
		turn{rate: r.Rate(), p50: r.Latency.Quantile(0.5), cpu: (after - before) / time.Duration(r.Taken)})
	return nil
}
