package scheduler_test

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// anotherRequest submits the next request of a closed loop when one is answered.
type anotherRequest func()

func (again anotherRequest) Complete(r *scheduler.Request) {
	for _, t := range r.Outputs {
		t.Release()
	}
	again()
}

// TestReasonsNameTheBound: with clients in a closed loop, most batches have the close reason of
// the bound in effect.
func TestReasonsNameTheBound(t *testing.T) {
	budgettest.OneGoroutine(t)
	steps := func(rows int) time.Duration { return time.Duration((rows+15)/16) * 10 * time.Millisecond }
	linear := func(rows int) time.Duration { return time.Millisecond + time.Duration(rows)*500*time.Microsecond }
	for _, c := range []struct {
		name    string
		clients int
		slo     time.Duration
		exec    func(rows int) time.Duration
		config  scheduler.ModelConfig
		want    scheduler.CloseReason
	}{
		{"steps of 16", 200, 10 * time.Second, steps, scheduler.ModelConfig{Objective: time.Second, MaxBatch: 40},
			scheduler.CloseRate},
		{"max_batch", 41, 10 * time.Second, linear, scheduler.ModelConfig{Objective: time.Second, MaxBatch: 8},
			scheduler.CloseFull},
		{"objective", 200, 10 * time.Second, linear, scheduler.ModelConfig{Objective: 10 * time.Millisecond},
			scheduler.CloseObjective},
		{"deadlines", 200, 30 * time.Millisecond, linear, scheduler.ModelConfig{Objective: time.Second},
			scheduler.CloseDeadline},
		{"bytes", 41, 10 * time.Second, linear, scheduler.ModelConfig{Objective: time.Second, BatchBytes: 40},
			scheduler.CloseBytes},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := schedtest.NewClock()
			sched, err := scheduler.New(scheduler.Config{Clock: clock, Default: c.config})
			if err != nil {
				t.Fatal(err)
			}
			rep, err := sched.AddReplica(scheduler.ModelID{Name: "m", Version: "1"},
				scheduler.Spec{Inputs: rowSpec, Outputs: rowSpec},
				&schedtest.Worker{Clock: clock, Exec: c.exec}, scheduler.ReplicaOptions{})
			if err != nil {
				t.Fatal(err)
			}
			in, err := tensor.FromSlice(tensor.Shape{1, 4}, []uint8{1, 2, 3, 4})
			if err != nil {
				t.Fatal(err)
			}
			length := 20 * time.Second
			if !budgettest.Whole() {
				length /= 10
			}
			end := clock.Now().Add(length)
			var submit func()
			submit = func() {
				if clock.Now().After(end) {
					return
				}
				sched.Submit(&scheduler.Request{Model: rep.Model(), Inputs: []tensor.Tensor{in}, Rows: 1,
					Deadline: clock.Now().Add(c.slo),
					Owner:    anotherRequest(func() { clock.AfterFunc(time.Millisecond, submit) })})
			}
			for range c.clients {
				submit()
			}
			clock.Advance(length)
			stats := rep.Model().Stats()
			if got := stats.Closed[c.want]; 2*got < stats.Batches {
				t.Errorf("%d of %d batches have the reason %q, want most; all are %v", got, stats.Batches, c.want,
					stats.Closed)
			}
			sched.Close()
		})
	}
}
