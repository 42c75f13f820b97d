package scheduler_test

import (
	"errors"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// A stuckClock advances, but its timers never fire.
type stuckClock struct{ now time.Time }

func (c *stuckClock) Now() time.Time                                  { return c.now }
func (c *stuckClock) AfterFunc(time.Duration, func()) scheduler.Timer { return stuckTimer{} }
func (c *stuckClock) ask(s *scheduler.Scheduler, m *scheduler.Model, t *testing.T, within time.Duration) *error {
	err := errors.New("not answered")
	r := &scheduler.Request{Model: m, Inputs: rowOf(t, 1), Rows: 1,
		Owner: ownerFunc(func(r *scheduler.Request) { err = r.Err })}
	if within > 0 {
		r.Deadline = c.now.Add(within)
	}
	s.Submit(r)
	return &err
}

type stuckTimer struct{}

func (stuckTimer) Reset(time.Duration) bool { return false }
func (stuckTimer) Stop() bool               { return false }

// TestExpiredRowsAreNotSent: a row whose deadline has passed is not sent, although the timer is
// late: not when a replica becomes free, not when one registers, and not when its own is lost.
func TestExpiredRowsAreNotSent(t *testing.T) {
	no := false
	for name, cfg := range map[string]scheduler.ModelConfig{
		"deadline":             {Slots: 1},
		"static":               {Slots: 1, Strategy: "static"},
		"static, shed = false": {Slots: 1, Strategy: "static", Shed: &no},
		"aimd, shed = false":   {Slots: 1, Strategy: "aimd", Shed: &no},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &stuckClock{now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)}
			s, err := scheduler.New(scheduler.Config{Clock: clock, Default: cfg})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			a, b, c := &schedtest.Worker{}, &schedtest.Worker{}, &schedtest.Worker{}
			rep := addTo(t, s, benchID, rowsSpec, a)
			first := clock.ask(s, rep.Model(), t, 0)
			second := clock.ask(s, rep.Model(), t, 10*time.Millisecond)
			clock.now = clock.now.Add(20 * time.Millisecond)
			if err := a.Answer(); err != nil {
				t.Fatal(err)
			}
			if *first != nil || !errors.Is(*second, scheduler.ErrDeadlineExceeded) || len(a.Pending()) > 0 {
				t.Errorf("a replica became free: %v and %v, then batches of %v rows were sent", *first, *second,
					a.Pending())
			}

			third := clock.ask(s, rep.Model(), t, 0)
			fourth := clock.ask(s, rep.Model(), t, 10*time.Millisecond)
			clock.now = clock.now.Add(20 * time.Millisecond)
			other := addTo(t, s, benchID, rowsSpec, b)
			if !errors.Is(*fourth, scheduler.ErrDeadlineExceeded) || len(b.Pending()) > 0 {
				t.Errorf("a replica registered: %v, batches of %v rows were sent", *fourth, b.Pending())
			}

			fifth := clock.ask(s, rep.Model(), t, 10*time.Millisecond)
			if len(b.Pending()) != 1 {
				t.Fatalf("batches of %v rows were sent", b.Pending())
			}
			clock.now = clock.now.Add(20 * time.Millisecond)
			addTo(t, s, benchID, rowsSpec, c)
			b.Drop()
			other.Remove(errors.New("connection reset"))
			if !errors.Is(*fifth, scheduler.ErrContainerLost) || len(c.Pending()) > 0 {
				t.Errorf("a replica was lost: %v, batches of %v rows were sent to the other", *fifth, c.Pending())
			}
			if err := a.Answer(); err != nil || *third != nil {
				t.Errorf("%v, %v", err, *third)
			}
			if err := rep.Model().Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestExecutionAfterAStall: when a suspect replica answers after all, its stall does not count as
// execution time of later batches.
func TestExecutionAfterAStall(t *testing.T) {
	var took []time.Duration
	s, clock := newVirtual(t, scheduler.Config{
		Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: 1, ExecTimeout: time.Second},
		Hooks: scheduler.Hooks{BatchDone: func(_ scheduler.ModelID, _ int, exec, _ time.Duration, err error) {
			if err == nil {
				took = append(took, exec)
			}
		}},
	})
	w := &schedtest.Worker{}
	model := addTo(t, s, benchID, rowsSpec, w).Model()
	submit := func(n int) {
		for range n {
			s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1,
				Owner: ownerFunc(func(*scheduler.Request) {})})
		}
	}
	answer := func(after time.Duration) {
		clock.Advance(after)
		if err := w.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 { // so short that the second batch goes at once behind the first
		submit(1)
		answer(100 * time.Microsecond)
	}
	submit(2)
	if n := len(w.Pending()); n != 2 {
		t.Fatalf("%d batches are in flight, want 2", n)
	}
	clock.Advance(2 * time.Second)
	took = took[:0]
	answer(0) // live again, with a batch that was given up
	submit(1)
	answer(50 * time.Millisecond)
	answer(100 * time.Microsecond)
	if len(took) != 1 || took[0] != 100*time.Microsecond {
		t.Errorf("after the stall executions were measured to take %v, want one of 100µs", took)
	}
}

// TestLostBatch: a batch that a container forgets is given up after the execution timeout,
// although the container answers all later ones. It costs a slot and nothing else.
func TestLostBatch(t *testing.T) {
	s, clock := newVirtual(t,
		scheduler.Config{Default: scheduler.ModelConfig{ExecTimeout: time.Second, MaxBatch: 1, Slots: 2}})
	var out []*scheduler.Batch
	answer := func() {
		for len(out) > 0 {
			outputs, _, _ := schedtest.Echo(out[0])
			b := out[0]
			out = out[1:]
			b.Complete(outputs, nil)
		}
	}
	forgetful := addTo(t, s, benchID, rowsSpec,
		scheduler.WorkerFunc(func(b *scheduler.Batch) error { out = append(out, b); return nil }))
	answers := 0
	submit := func() *error {
		err := errors.New("not answered")
		s.Submit(&scheduler.Request{Model: forgetful.Model(), Inputs: rowOf(t, 1), Rows: 1,
			Owner: ownerFunc(func(r *scheduler.Request) {
				err = r.Err
				answers++
			})})
		return &err
	}
	submit()
	// Batches are so fast that the next one does not wait for the answer.
	clock.Advance(100 * time.Microsecond)
	answer()
	lost := submit()
	out = nil
	for range 9 {
		clock.Advance(100 * time.Millisecond)
		submit()
		answer()
	}
	if state := forgetful.Model().Stats().Replicas[0]; answers != 10 || state.State != "live" || state.InFlight != 1 {
		t.Fatalf("%d answers, the replica is %s with %d batches, want 10 and one batch lost of a live one", answers,
			state.State, state.InFlight)
	}
	clock.Advance(100 * time.Millisecond)
	if state := forgetful.Model().Stats().Replicas[0]; state.State != "live" || state.InFlight != 0 ||
		state.GivenUp != 1 {
		t.Errorf("the container is %s with %d batches and %d given up, a second after it was sent the one that it forgot",
			state.State, state.InFlight, state.GivenUp)
	}
	if !errors.Is(*lost, scheduler.ErrContainerLost) {
		t.Errorf("the request in it is answered %v", *lost)
	}
	for range 3 {
		at := clock.Now()
		err := submit()
		if answer(); *err != nil || clock.Now() != at {
			t.Errorf("a request after that is answered %v", *err)
		}
	}
}
