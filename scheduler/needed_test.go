package scheduler_test

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/shiva/budgettest"
)

// TestNeeded: as many replicas as are said to be needed hold the deadlines of what arrives, the
// figure does not grow once they are there, and it is 0 when nothing has arrived for a minute.
func TestNeeded(t *testing.T) {
	rates := []int{100, 1000, 4000} // rows per second; one replica does 800 in time
	if !budgettest.Whole() {
		rates = rates[:2]
	}
	for _, rate := range rates {
		s, clock := newVirtual(t, scheduler.Config{})
		add := func() *scheduler.Replica {
			return addTo(t, s, benchID, rowsSpec, &schedtest.Worker{Clock: clock, Exec: schedtest.Linear(10*time.Millisecond, time.Millisecond)})
		}
		model := add().Model()
		if n := model.Stats().Needed; n != 0 {
			t.Errorf("nobody has asked, and %d replicas are needed", n)
		}
		arrive := func(seconds int) (inTime float64) {
			good := 0
			for range seconds * rate {
				s.Submit(&scheduler.Request{Model: model, Inputs: rowOf(t, 1), Rows: 1, Deadline: clock.Now().Add(100 * time.Millisecond),
					Owner: ownerFunc(func(r *scheduler.Request) {
						if r.Err == nil {
							good++
						}
					})})
				clock.Advance(time.Second / time.Duration(rate))
			}
			return float64(good) / float64(seconds*rate)
		}
		alone := arrive(10)
		n := model.Stats().Needed
		t.Logf("%d rows/s: one replica answers %.3f in time; %d are needed", rate, alone, n)
		for range n - 1 {
			add()
		}
		arrive(5) // the new ones learn their times
		if share := arrive(5); share < 0.99 {
			t.Errorf("%d rows/s: with %d replicas %.3f are in time", rate, n, share)
		}
		arrive(60 * 100 / rate)
		if again := model.Stats().Needed; again < 1 || again > n {
			t.Errorf("%d rows/s: %d replicas were needed, and %d with these", rate, n, again)
		}
		clock.Advance(2 * time.Minute)
		if n := model.Stats().Needed; n != 0 {
			t.Errorf("nobody has asked for two minutes, and %d replicas are needed", n)
		}
	}
}
