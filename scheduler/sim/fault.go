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

// A Fault is a fault of the containers or the rows of a cell. A batch that fails takes as long as
// one that is answered. The fault lasts from the beginning; hanging and stopping begin with the
// full load.
type Fault struct {
	Name   string
	Poison float64       // share of rows that fail any batch; they are not counted
	Above  int           // rows above which a batch fails; 0: none
	Hang   bool          // one row is never answered, nor any batch behind it
	Stop   time.Duration // the first replica stops for this long
}

const (
	faultTimeout = time.Second            // execution timeout of cells with a fault
	faultRestart = 500 * time.Millisecond // from the end of a replica to its replacement
)

// Faulty returns the cells of a kind of container with one fault each. A load is a share of the
// load that can be served with the fault.
func (p Profile) Faulty() []Cell {
	var all []Cell
	for _, f := range []struct {
		Fault
		load     float64
		replicas int
	}{
		// Finding a bad row takes a batch for each doubling of the rows in its batch; the load must
		// leave time for that.
		{Fault{Name: "poison", Poison: 0.01}, 0.05, 1},
		{Fault{Name: "above 8", Above: 8}, 0.8, 1},
		{Fault{Name: "above 8, overload", Above: 8}, 1.5, 1},
		{Fault{Name: "hang", Hang: true}, 0.8, 2},
		{Fault{Name: "hang of the only one", Hang: true}, 0.8, 1},
		{Fault{Name: "stop", Stop: 2 * time.Second}, 0.8, 2},
	} {
		c := Cell{Profile: p, Load: f.load, Fault: &f.Fault}
		c.Replicas = f.replicas
		c.Load *= c.ForOracle().Capacity() / c.Capacity()
		all = append(all, c)
	}
	return all
}

// ForOracle returns the cell for an oracle that knows the fault: the same rows without the fault,
// and with infinite times for batches above the size that fails.
func (c Cell) ForOracle() Cell {
	o := c
	o.Fault = nil
	if f := c.Fault; f != nil && f.Above > 0 {
		o.Curve = func(rows int) time.Duration {
			if rows > f.Above {
				return time.Hour
			}
			return c.base(rows)
		}
		o.Load *= c.Capacity() / o.Capacity()
	}
	return o
}

// Values of a row's first byte.
const (
	rowGood = iota
	rowPoison
	rowHanging
)

// rowKinds returns a function to call for the rows of the cell in order of arrival; it returns the
// kind of each row.
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

// A stage holds the replicas of a simulation.
type stage struct {
	Cell
	clock *schedtest.Clock
	start time.Time
	sched *scheduler.Scheduler
	outs  [MaxBatch + 1]tensor.Tensor
	model *scheduler.Model
	err   error
}

// compute is the model of the replicas.
func (s *stage) compute(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
	if b.Rows == 0 {
		s.err = errors.New("sim: a batch has no rows")
	}
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

// add adds a replica, and a replacement when it is given up.
func (s *stage) add(i int, c *clockwork) {
	w := &schedtest.Worker{Clock: s.clock, Model: s.compute, Concurrency: s.Concurrency}
	w.Exec = func(rows int) time.Duration { return c.next(rows, s.clock.Now().Sub(s.start)) }
	if s.Fault != nil && s.Fault.Hang {
		w.Hangs = func(b *scheduler.Batch) bool { return has(b, rowHanging) }
	}
	var rep *scheduler.Replica
	rep, err := s.sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
		scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec}, w,
		scheduler.ReplicaOptions{Label: fmt.Sprint(i), Concurrency: s.Concurrency, Silent: func(reason error) {
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
