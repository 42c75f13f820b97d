package sim

import (
	"fmt"
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

// Strategies are those of the scheduler, and Clipper's paper as it was published, without shedding.
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
	var model *scheduler.Model
	for i, w := range c.clockworks() {
		exec := func(rows int) time.Duration { return w.next(rows, clock.Now().Sub(start)) }
		rep, err := sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"}, scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec},
			&schedtest.Worker{Clock: clock, Exec: exec, Model: func(b *scheduler.Batch) ([]tensor.Tensor, []scheduler.RowError, error) {
				return outs[b.Rows : b.Rows+1], nil, nil
			}}, scheduler.ReplicaOptions{Label: fmt.Sprint(i)})
		if err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
		model = rep.Model()
	}
	d := &driver{clock: clock, start: start, sched: sched, model: model, input: outs[1], res: res, rows: c.arrivals()}
	d.arrive()
	clock.Advance(c.end() + 20*c.SLO + time.Second)
	sched.Close()
	return res.done(), nil
}

// outputs are answers by number of rows.
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
	clock *schedtest.Clock
	start time.Time
	sched *scheduler.Scheduler
	model *scheduler.Model
	input tensor.Tensor
	res   *Result
	rows  []arrival
	timer scheduler.Timer
	spare []*question
}

// A question is one row, answered or to be.
type question struct {
	scheduler.Request
	d  *driver
	at arrival
}

func (d *driver) arrive() {
	now := d.clock.Now().Sub(d.start)
	for len(d.rows) > 0 && d.rows[0].at <= now {
		var q *question
		if n := len(d.spare); n > 0 {
			q, d.spare = d.spare[n-1], d.spare[:n-1]
		} else {
			q = &question{d: d}
			q.Inputs = []tensor.Tensor{d.input}
		}
		q.at = d.rows[0]
		d.rows = d.rows[1:]
		q.Model, q.Rows, q.Owner, q.Deadline = d.model, 1, q, d.start.Add(q.at.deadline)
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
func (q *question) Complete(r *scheduler.Request) {
	q.d.res.row(q.at, q.d.clock.Now().Sub(q.d.start), r.Err == nil)
	q.d.spare = append(q.d.spare, q)
}
