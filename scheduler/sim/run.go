package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Strategy is a scheduler's configuration with a name.
type Strategy struct {
	Name   string
	Config scheduler.ModelConfig // Objective 0 means the cell's longest SLO
}

// Strategies returns the strategies of the scheduler, and Clipper's AIMD as published, without
// shedding.
func Strategies() []Strategy {
	var all []Strategy
	for _, name := range scheduler.Strategies() {
		all = append(all, Strategy{name, scheduler.ModelConfig{Strategy: name}})
	}
	no := false
	return append(all, Strategy{"aimd, shed = false", scheduler.ModelConfig{Strategy: "aimd", Shed: &no}})
}

var rowSpec = []tensor.Spec{{Name: "x", DType: tensor.Uint8, Shape: tensor.Shape{-1, 4}}}

// Run simulates one strategy of the scheduler in a cell.
func Run(c Cell, s Strategy) (*Result, error) {
	clock := schedtest.NewClock()
	start := clock.Now()
	res := &Result{cell: c}
	cfg := s.Config
	if cfg.Objective == 0 {
		if cfg.Objective = c.Objective; cfg.Objective == 0 {
			cfg.Objective = c.longest()
		}
	}
	if c.Fault != nil {
		cfg.ExecTimeout = faultTimeout
	}
	sched, err := scheduler.New(scheduler.Config{
		Clock: clock, Default: cfg,
		Hooks: scheduler.Hooks{BatchClosed: func(_ scheduler.ModelID, n int, _ scheduler.CloseReason, _ time.Duration) {
			res.batch(clock.Now().Sub(start), n)
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	outs, err := outputs()
	if err != nil {
		return nil, err
	}
	stage := &stage{Cell: c, clock: clock, start: start, sched: sched, outs: outs}
	for i, w := range c.clockworks() {
		stage.add(i, w)
	}
	if stage.err != nil {
		return nil, stage.err
	}
	d := &driver{clock: clock, start: start, sched: sched, model: stage.model, res: res, rows: c.arrivals(),
		kind:    c.rowKinds(),
		sources: max(1, c.Sources), rng: rand.New(rand.NewPCG(c.Seed, 3))}
	for kind := range d.inputs {
		if d.inputs[kind], err = tensor.FromSlice(tensor.Shape{1, 4}, []uint8{uint8(kind), 0, 0, 0}); err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
	}
	d.arrive()
	clock.Advance(c.end() + 20*c.SLO + time.Second)
	sched.Close()
	return res.done(), stage.err
}

// outputs returns answers, indexed by number of rows.
func outputs() ([MaxBatch + 1]tensor.Tensor, error) {
	var all [MaxBatch + 1]tensor.Tensor
	for n := 1; n <= MaxBatch; n++ {
		t, err := tensor.FromSlice(tensor.Shape{n, 4}, make([]uint8, 4*n))
		if err != nil {
			return all, fmt.Errorf("sim: %w", err)
		}
		all[n] = t
	}
	return all, nil
}

// A driver submits the rows of a trace, each at its time.
type driver struct {
	clock  *schedtest.Clock
	start  time.Time
	sched  *scheduler.Scheduler
	model  *scheduler.Model
	inputs [rowHanging + 1]tensor.Tensor // by kind of row
	kind   func(at time.Duration) int
	res    *Result
	rows   []arrival
	timer  scheduler.Timer
	spare  []*rowRequest

	sources int
	rng     *rand.Rand // for them
	good    func()     // called for each counted row that is answered in time; may be nil
}

// A rowRequest is one row and its request.
type rowRequest struct {
	scheduler.Request
	d      *driver
	at     arrival
	counts bool
}

func (d *driver) arrive() {
	now := d.clock.Now().Sub(d.start)
	for len(d.rows) > 0 && d.rows[0].at <= now {
		var q *rowRequest
		if n := len(d.spare); n > 0 {
			q, d.spare = d.spare[n-1], d.spare[:n-1]
		} else {
			q = &rowRequest{d: d}
			q.Inputs = make([]tensor.Tensor, 1)
		}
		q.at = d.rows[0]
		kind := d.kind(q.at.at)
		q.Inputs[0], q.counts = d.inputs[kind], kind == rowGood
		d.rows = d.rows[1:]
		q.Model, q.Rows, q.Owner, q.Deadline = d.model, 1, q, d.start.Add(q.at.deadline)
		q.Source = uint64(d.rng.IntN(d.sources))
		d.sched.Submit(&q.Request)
	}
	if len(d.rows) == 0 {
		return
	}
	if d.timer == nil {
		d.timer = d.clock.AfterFunc(d.rows[0].at-now, d.arrive)
	} else {
		d.timer.Reset(d.rows[0].at - now)
	}
}

// Complete counts the answer.
func (q *rowRequest) Complete(r *scheduler.Request) {
	if q.counts {
		if q.d.res.row(q.at, q.d.clock.Now().Sub(q.d.start), r.Err == nil) && q.d.good != nil {
			q.d.good()
		}
	}
	q.d.spare = append(q.d.spare, q)
}
