package scheduler_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
)

// TestAwait: requests of a model whose replica is about to be started wait for it, and at their
// deadlines are answered ErrUnavailable with the reason of the delay; once no replica is awaited
// any more, they are answered at once. A replica with another contract answers none of them.
func TestAwait(t *testing.T) {
	s, clock := newVirtual(t, scheduler.Config{})
	rep := addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)})
	m := rep.Model()
	m.Await("it starts")
	rep.Remove(errors.New("asleep"))
	asked := func(deadline time.Duration) *error {
		answer := new(error)
		*answer = errors.New("not answered")
		r := &scheduler.Request{Model: m, Inputs: rowOf(t, 1), Rows: 1, Deadline: clock.Now().Add(deadline)}
		r.Owner = ownerFunc(func(r *scheduler.Request) { *answer = r.Err })
		s.Submit(r)
		return answer
	}
	if !m.Awaited() || m.Replicas() != 0 {
		t.Error("it is not awaited, or has a replica")
	}
	late, served := asked(time.Second), asked(time.Minute)
	m.Await("its process ended")
	clock.Advance(2 * time.Second)
	if !errors.Is(*late, scheduler.ErrUnavailable) || !strings.Contains((*late).Error(), "by the request's deadline: its process ended") {
		t.Errorf("after its deadline: %v", *late)
	}
	rep = addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(time.Millisecond, 0)})
	clock.Advance(time.Second)
	if *served != nil {
		t.Errorf("after a replica came: %v", *served)
	}
	rep.Remove(errors.New("asleep"))
	waits := asked(time.Minute)
	m.Await("")
	if !errors.Is(*waits, scheduler.ErrUnavailable) || strings.Contains((*waits).Error(), "deadline") {
		t.Errorf("nothing is awaited: %v", *waits)
	}
	m.Await("it starts")
	waits = asked(time.Minute)
	other := rowsSpec
	other.MaxBatch, other.Inputs = 7, append(other.Inputs[:0:0], other.Inputs...)
	other.Inputs[0].Name = "other"
	addTo(t, s, benchID, other, &schedtest.Worker{Clock: clock})
	if !errors.Is(*waits, scheduler.ErrUnavailable) {
		t.Errorf("the replica is of another kind: %v", *waits)
	}
}
