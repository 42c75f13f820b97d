package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Fault is what is wrong with the containers or the rows of a cell. What fails takes as long
// as what does not. The fault is there from the beginning; hanging and stopping begin with the
// load proper.
type Fault struct {
	Name   string
	Poison float64       // share of the rows that any batch fails of; they are not counted
	Above  int           // rows above which a batch fails; 0: none
	Hang   bool          // one row is never answered, nor anything behind it
	Stop   time.Duration // the first replica stops for so long
}

const (
	faultTimeout = time.Second            // execution timeout of cells with a fault
	faultRestart = 500 * time.Millisecond // from the end of a replica to the next one in its place
)

// Faulty are the cells of a kind of container with one fault each. A load is a share of what can be
// had with the fault.
func (p Profile) Faulty() []Cell {
	var all []Cell
	for _, f := range []struct {
		Fault
		load     float64
		replicas int
	}{
		// To find a bad row takes a batch for each doubling of those it came with, for which
		// there must be time.
		{Fault{Name: "poison", Poison: 0.01}, 0.05, 1},
		{Fault{Name: "above 8", Above: 8}, 0.8, 1},
		{Fault{Name: "above 8, overload", Above: 8}, 1.5, 1},
		{Fault{Name: "hang", Hang: true}, 0.8, 2},
		{Fault{Name: "hang of the only one", Hang: true}, 0.8, 1},
		{Fault{Name: "stop", Stop: 2 * time.Second}, 0.8, 2},
	} {
		c := Cell{Profile: p, Load: f.load, Fault: &f.Fault}
		c.Replicas = f.replicas
		c.Load *= c.Told().Capacity() / c.Capacity()
		all = append(all, c)
	}
	return all
}

// Told is the cell as it is for somebody who knows what is wrong: without the fault, with the same
// rows, and with batches above the size that fails taking for ever. It is what the oracle is asked
// about.
func (c Cell) Told() Cell {
	told := c
	told.Fault = nil
	if f := c.Fault; f != nil && f.Above > 0 {
		told.Curve = func(rows int) time.Duration {
			if rows > f.Above {
				return time.Hour
			}
			return c.base(rows)
		}
		told.Load *= c.Capacity() / told.Capacity()
	}
	return told
}

// Values of a row's first byte.
const (
	rowGood = iota
	rowPoison
	rowHanging
)

// A row's kind, of rows of the cell in order of their arrival.
func (c Cell) rowKinds() func(at time.Duration) int {
	rng := rand.New(rand.NewPCG(c.Seed, 50))
	hung := false
	return func(at time.Duration) int {
		switch f := c.Fault; {
		case f == nil:
		case f.Hang && !hung && at >= c.Light:
			hung = true
			return rowHanging
		case rng.Float64() < f.Poison:
			return rowPoison
		}
		return rowGood
	}
}

// has reports whether a batch has a row of that kind.
func has(b *scheduler.Batch, kind uint8) bool {
	for _, p := range b.Parts {
		if p.Inputs[0].Data[0] == kind {
			return true
		}
	}
	return false
}

// A stage is the replicas of a simulation.
type stage struct {
	Cell
	clock *schedtest.Clock
	start time.Time
	sched *scheduler.Scheduler
	outs  [MaxBatch + 1]tensor.Tensor
	model *scheduler.Model
	err   error
}

// compute is the model.
func (s *stage) compute(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	if f := s.Fault; f != nil {
		if f.Above > 0 && b.Rows > f.Above {
			return nil, nil, errors.New("out of memory")
		}
		if f.Poison > 0 && has(b, rowPoison) {
			return nil, nil, errors.New("a row is bad")
		}
	}
	return s.outs[b.Rows : b.Rows+1], nil, nil
}

// add puts a replica to work, and another one in its place if it has to be given up.
func (s *stage) add(i int, c *clockwork) {
	w := &schedtest.Worker{Clock: s.clock, Model: s.compute}
	w.Exec = func(rows int) time.Duration { return c.next(rows, s.clock.Now().Sub(s.start)) }
	if s.Fault != nil && s.Fault.Hang {
		w.Hangs = func(b *scheduler.Batch) bool { return has(b, rowHanging) }
	}
	var rep *scheduler.Replica
	rep, err := s.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, w,
		scheduler.ReplicaOptions{Label: fmt.Sprint(i), Silent: func(reason error) {
			w.Drop()
			rep.Remove(reason)
			s.clock.AfterFunc(faultRestart, func() { s.add(i, c) })
		}})
	if err != nil {
		s.err = errors.Join(s.err, fmt.Errorf("sim: %w", err))
		return
	}
	s.model = rep.Model()
	if s.Replica != nil {
		s.Replica(rep)
	}
	if s.Fault != nil && s.Fault.Stop > 0 && i == 0 {
		s.clock.AfterFunc(s.Light-s.clock.Now().Sub(s.start), w.Pause)
		s.clock.AfterFunc(s.Light+s.Fault.Stop-s.clock.Now().Sub(s.start), w.Resume)
	}
}
