package schedtest

import (
	"testing"
	"time"
)

// TestClock: timers fire at their times, in order, once; Stop and Reset behave as those of
// time.Timer.
func TestClock(t *testing.T) {
	c := NewClock()
	start := c.Now()
	var fired []string
	after := func(name string, d time.Duration) func(time.Duration) bool {
		timer := c.AfterFunc(d, func() { fired = append(fired, name+" "+c.Now().Sub(start).String()) })
		return func(d time.Duration) bool {
			if d < 0 {
				return timer.Stop()
			}
			return timer.Reset(d)
		}
	}
	after("b", 2*time.Second)
	after("a", time.Second)
	stopped := after("never", time.Second)
	moved := after("c", time.Second)
	if !stopped(-1) || stopped(-1) || !moved(3*time.Second) {
		t.Error("Stop and Reset do not tell whether the timer was to fire")
	}
	c.AfterFunc(time.Second, func() { after("nested", time.Second) })
	c.Advance(2500 * time.Millisecond)
	if got := len(fired); got != 3 || fired[0] != "a 1s" || fired[1] != "b 2s" || fired[2] != "nested 2s" {
		t.Errorf("fired %v", fired)
	}
	if !c.Step() || c.Step() || c.Timers() != 0 || fired[3] != "c 3s" {
		t.Errorf("fired %v", fired)
	}
}

// TestWorkerWithoutBatches: Answer and Fail return ErrNothingPending.
func TestWorkerWithoutBatches(t *testing.T) {
	w := &Worker{}
	if w.Answer() != ErrNothingPending || w.Fail(nil) != ErrNothingPending {
		t.Error("an answer without a batch")
	}
}
