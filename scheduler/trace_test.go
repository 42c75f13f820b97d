package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// TestTrace: the trace of a request names the batch that it was in and the other traced requests in
// it; the worker gets the request's parent. The trace of a request that was never sent stays empty.
func TestTrace(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", MaxBatch: 8}})
	parentOf := func(name string) (p scheduler.Parent) {
		copy(p.Span[:], name)
		return p
	}
	parentsOf := func(names ...string) (all []scheduler.Parent) {
		for _, name := range names {
			all = append(all, parentOf(name))
		}
		return all
	}
	var parents []scheduler.Parent
	w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(10*time.Millisecond, 0)}
	watched := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		for _, p := range b.Parts {
			parents = append(parents, p.Trace)
		}
		return w.Send(b)
	})
	rep, err := s.AddReplica(benchID, rowsSpec, watched, scheduler.ReplicaOptions{Label: "gpu", Slots: 1})
	if err != nil {
		t.Fatal(err)
	}
	request := func(parent string, deadline time.Duration) *scheduler.Request {
		r := &scheduler.Request{Model: rep.Model(), Inputs: rowOf(t, 1), Rows: 1, Deadline: clock.Now().Add(deadline),
			Owner: ownerFunc(func(*scheduler.Request) {})}
		if parent != "" {
			r.Trace = &scheduler.Trace{Parent: parentOf(parent)}
		}
		return r
	}
	first, late := request("first", time.Second), request("late", time.Millisecond)
	s.Submit(first)
	s.Submit(late)
	a, plain, b := request("a", time.Second), request("", time.Second), request("b", time.Second)
	s.Submit(a, plain, b)
	clock.Advance(time.Second)

	if got := *first.Trace; got.Parent != parentOf("first") || !got.Sent || got.Reason != scheduler.CloseIdle ||
		got.BatchRows != 1 || got.Replica != "gpu" || got.Batch != nil {
		t.Errorf("alone: %+v", got)
	}
	if got := *late.Trace; got.Sent || got.Batch != nil || late.Err == nil {
		t.Errorf("never sent: %+v, %v", got, late.Err)
	}
	for _, r := range []*scheduler.Request{a, b} {
		if got := *r.Trace; !got.Sent || got.BatchRows != 3 || !slices.Equal(got.Batch, parentsOf("a", "b")) {
			t.Errorf("together: %+v", got)
		}
	}
	if want := parentsOf("first", "a", "", "b"); !slices.Equal(parents, want) {
		t.Errorf("the worker is told %v, expected %v", parents, want)
	}
}
