package scheduler_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// callbacks counts the calls of each callback, and finds those with the lock of the model held.
type callbacks struct {
	t     *testing.T
	model *scheduler.Model
	calls map[string]int
}

func (c *callbacks) called(what string) {
	c.calls[what]++
	if c.model != nil && scheduler.Locked(c.model) {
		c.t.Errorf("%s is called with the model's lock held", what)
	}
}

func (c *callbacks) Complete(*scheduler.Request)   { c.called("Complete") }
func (c *callbacks) ReceiveLate([]tensor.Tensor)   { c.called("ReceiveLate") }
func (c *callbacks) Name() string                  { c.called("Name"); return "seven" }
func (c *callbacks) Error() string                 { c.called("Error"); return "connection reset" }
func (c *callbacks) drained()                      { c.called("Drain") }
func (c *callbacks) changed(m *scheduler.Model)    { c.called("ModelChanged") }
func (c *callbacks) offer(scheduler.Offer)         { c.called("Offer") }
func (c *callbacks) silent(error)                  { c.called("Silent") }
func (c *callbacks) feedback(*scheduler.Feedback)  { c.called("Feedback") }
func (c *callbacks) delivering() func()            { c.called("Delivering"); return c.delivered }
func (c *callbacks) delivered()                    { c.called("over") }
func (c *callbacks) wasted(scheduler.ModelID, int) { c.called("RowsWasted") }

// TestCallbacksWithoutTheLock: whatever the scheduler calls is called without a model's lock, so it
// may call the scheduler, and what it costs delays no other request.
func TestCallbacksWithoutTheLock(t *testing.T) {
	c := &callbacks{t: t, calls: make(map[string]int)}
	s, clock := newVirtual(t, scheduler.Config{
		Default: scheduler.ModelConfig{Strategy: "static", Slots: 1, ExecTimeout: time.Second},
		Hooks: scheduler.Hooks{
			ModelChanged: c.changed, Delivering: c.delivering, RowsWasted: c.wasted,
			Answered: func(*scheduler.Request, scheduler.Outcome) { c.called("Answered") },
			BatchClosed: func(scheduler.ModelID, int, scheduler.CloseReason, time.Duration) {
				c.called("BatchClosed")
			},
			BatchDone: func(scheduler.ModelID, int, time.Duration, time.Duration, error) { c.called("BatchDone") },
		},
	})
	w := &schedtest.Worker{}
	rep, err := s.AddReplica(benchID, rowsSpec, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		c.called("Send")
		return w.Send(b)
	}), scheduler.ReplicaOptions{Feedback: c.feedback, Offer: c.offer, Silent: c.silent})
	if err != nil {
		t.Fatal(err)
	}
	c.model = rep.Model()
	submit := func(source uint64, n int, within time.Duration) {
		rs := make([]*scheduler.Request, n)
		for i := range rs {
			rs[i] = &scheduler.Request{Model: c.model, Inputs: rowOf(t, 1), Rows: 1, Source: source, Owner: c}
			if within > 0 {
				rs[i].Deadline = clock.Now().Add(within)
			}
		}
		s.Submit(rs...)
	}
	answer := func() {
		if err := w.Answer(); err != nil {
			t.Fatal(err)
		}
	}
	submit(7, 2, 0)
	answer()
	submit(7, 1, 10*time.Millisecond)
	clock.Advance(20 * time.Millisecond)
	answer() // late
	c.model.Feedback(&scheduler.Feedback{})
	rep.Share(true)
	submit(7, 1, 10*time.Millisecond)
	clock.Advance(20 * time.Millisecond)
	rep.Share(false)
	submit(7, 1, 10*time.Second)
	clock.Advance(9 * time.Second) // silent
	for len(w.Pending()) > 0 {
		answer()
	}
	submit(8, 1, 0)
	rep.Drain(c.drained)
	w.Drop()
	rep.Remove(c)
	clock.Advance(time.Second)

	want := []string{
		"Answered", "BatchClosed", "BatchDone", "Complete", "Delivering", "Drain", "Error", "Feedback",
		"ModelChanged", "Name", "Offer", "ReceiveLate", "RowsWasted", "Send", "Silent", "over",
	}
	if got := slices.Sorted(maps.Keys(c.calls)); !slices.Equal(got, want) {
		t.Errorf("called: %q, expected %q", got, want)
	}
	if got := c.model.Stats().Culprits; len(got) != 1 || got[0].Name != "seven" {
		t.Errorf("culprits: %+v, expected one named by its owner", got)
	}
	if n := c.calls["ReceiveLate"]; n != 1 {
		t.Errorf("%d late answers were received, expected one", n)
	}
}
