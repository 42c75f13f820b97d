package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A world is the state of a simulation.
type world struct {
	Fleet
	clock    clock
	rng      *rand.Rand
	arrivals *arrivals

	servers    []*server // including those that have ended
	byAddress  map[string]*server
	containers []*container
	streams    []*server // by stream: the server to which it is connected
	addresses  []string  // what the name of the servers resolves to, for containers

	inputs  []tensor.Tensor
	outputs [][]tensor.Tensor // by number of rows
	spare   []*message
	frames  []*frame // spare frames

	tally   tally
	traffic *traffic
	err     error
}

const (
	maxBatch = 128 // rows of an execution
	modelID  = "m"
)

var rowSpec = []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 4}}}

// simulate plays a fleet, and returns the result.
func simulate(f Fleet) (*Result, error) {
	w, err := play(f)
	if err != nil {
		return nil, err
	}
	return w.tally.result(w), nil
}

// play plays a fleet to its end.
func play(f Fleet) (*world, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	w := &world{Fleet: f, rng: rand.New(rand.NewPCG(f.Seed, 2)), arrivals: newArrivals(f), byAddress: map[string]*server{}, traffic: newTraffic(f.Seed)}
	w.tally.init(f)
	for rows := range maxBatch + 1 {
		t, err := tensor.FromSlice(tensor.Shape{max(1, rows), 4}, make([]uint8, 4*max(1, rows)))
		if err != nil {
			return nil, fmt.Errorf("scale: %w", err)
		}
		w.outputs = append(w.outputs, []tensor.Tensor{t})
	}
	w.inputs = w.outputs[1]
	for range f.Servers {
		w.serve()
	}
	for range f.Containers {
		w.contain()
	}
	w.clock.AfterFunc(f.Settle, w.load)
	w.clock.AfterFunc(f.from(), func() { w.tally.starts(w); w.listen() })
	w.happen()
	w.run()
	return w, w.err
}

// load connects the streams, which send frames from now on.
func (w *world) load() {
	for i := range w.Streams {
		w.streams = append(w.streams, nil)
		w.connect(i)
	}
	w.watch()
}

// run processes events until all frames are answered or too late.
func (w *world) run() {
	end := int64(w.end() + 4*w.SLO)
	arrives := w.arrivals.next()
	for w.err == nil {
		at, ok := w.clock.next()
		if arrives <= at || !ok {
			if arrives > end {
				return
			}
			w.clock.now = arrives
			w.frame(w.rng.IntN(w.Streams))
			arrives = w.arrivals.next()
			continue
		}
		if at > end {
			return
		}
		if e := w.clock.take(); e.f != nil {
			e.f()
		} else {
			e.message.arrive()
		}
	}
}

// chance returns a random time between d/2 and d, as clients and containers use between retries.
func (w *world) chance(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.rng.Int64N(int64(d/2)+1))
}

// fail ends the simulation.
func (w *world) fail(err error) {
	if w.err == nil {
		w.err = fmt.Errorf("scale: %w", err)
	}
}

// newScheduler returns the scheduler of a server, configured for the model.
func (w *world) newScheduler() *scheduler.Scheduler {
	s, err := scheduler.New(scheduler.Config{Clock: &w.clock, Default: scheduler.ModelConfig{Objective: w.SLO, MaxBatch: maxBatch}})
	if err != nil {
		w.fail(err)
	}
	return s
}
