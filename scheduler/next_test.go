package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// TestSubmitNext: what the answers of a batch make possible makes one batch of each next model, in
// its order, although their replicas are idle; without such a batch nothing waits.
func TestSubmitNext(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{Default: scheduler.ModelConfig{Strategy: "static", Slots: 1}})
	var models []*scheduler.Model
	var sizes [3][]int
	var answered []int
	for i, name := range []string{"first", "left", "right"} {
		w := &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0),
			Seen: func(b *scheduler.Batch) { sizes[i] = append(sizes[i], b.Rows) }}
		rep := addTo(t, s, scheduler.ModelID{Name: name, Version: "1"}, rowsSpec, w)
		models = append(models, rep.Model())
	}
	next := func(i, after int) {
		s.SubmitNext(&scheduler.Request{Model: models[after], Inputs: rowOf(t, 1), Rows: 1,
			Owner: ownerFunc(func(*scheduler.Request) { answered = append(answered, i) })})
	}
	ask := func(n int) {
		rs := make([]*scheduler.Request, n)
		for i := range rs {
			rs[i] = &scheduler.Request{Model: models[0], Inputs: rowOf(t, 1), Rows: 1,
				Owner: ownerFunc(func(*scheduler.Request) { next(i, 1); next(i+n, 2) })}
		}
		s.Submit(rs...)
		clock.Advance(10 * time.Millisecond)
	}
	ask(3)
	ask(1)
	next(7, 1)
	if len(sizes[1]) != 3 {
		t.Errorf("a request that no batch made possible waits")
	}
	clock.Advance(10 * time.Millisecond)
	if want := [3][]int{{3, 1}, {3, 1, 1}, {3, 1}}; !slices.EqualFunc(sizes[:], want[:], slices.Equal) {
		t.Errorf("batches of %v rows, want %v", sizes, want)
	}
	if want := []int{0, 1, 2, 3, 4, 5, 0, 1, 7}; !slices.Equal(answered, want) {
		t.Errorf("answered %v, want %v", answered, want)
	}
}
