package clock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func newClock(t *testing.T) *Clock {
	t.Helper()
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestAllFire: every timer fires once, none early, whatever the order in which they were set.
func TestAllFire(t *testing.T) {
	c := newClock(t)
	const n = 500
	fired := make(chan int, 2*n)
	for i := range n {
		d := time.Duration(rand.IntN(30_000)) * time.Microsecond
		set := time.Now()
		c.AfterFunc(d, func() {
			if early := d - time.Since(set); early > 0 {
				t.Errorf("a timer of %v fired %v early", d, early)
			}
			fired <- i
		})
	}
	seen := map[int]bool{}
	for range n {
		i := <-fired
		if seen[i] {
			t.Errorf("timer %d fired twice", i)
		}
		seen[i] = true
	}
}

// TestResetAndStop: a timer can be set to an earlier and to a later time, and again after it
// has fired; a stopped one does not fire.
func TestResetAndStop(t *testing.T) {
	c := newClock(t)
	fired := make(chan string, 10)
	stopped := c.AfterFunc(time.Millisecond, func() { fired <- "stopped" })
	if !stopped.Stop() || stopped.Stop() {
		t.Error("Stop told other than that the timer was set, and then was not")
	}
	earlier := c.AfterFunc(time.Hour, func() { fired <- "earlier" })
	if !earlier.Reset(time.Millisecond) {
		t.Error("Reset told of a set timer that it was not")
	}
	if got := <-fired; got != "earlier" {
		t.Errorf("fired: %s", got)
	}
	began := time.Now()
	if earlier.Reset(2 * time.Millisecond) {
		t.Error("Reset told of a timer that has fired that it was set")
	}
	if got := <-fired; got != "earlier" || time.Since(began) < 2*time.Millisecond {
		t.Errorf("fired: %s after %v", got, time.Since(began))
	}
	// A timer that is moved back leaves a spurious alarm, which must not keep the next timer from
	// firing.
	later := c.AfterFunc(time.Millisecond, func() { fired <- "later" })
	for began = time.Now(); !later.Reset(10 * time.Millisecond); began = time.Now() {
		<-fired // a busy machine may move it too late
		<-fired
		later.Reset(time.Millisecond)
	}
	if got := <-fired; got != "later" || time.Since(began) < 10*time.Millisecond {
		t.Errorf("fired: %s after %v", got, time.Since(began))
	}
	if stopped.Reset(-time.Second) {
		t.Error("Reset told of a stopped timer that it was set")
	}
	if got := <-fired; got != "stopped" {
		t.Errorf("fired: %s", got)
	}
}

// TestConcurrent sets and stops timers from many goroutines, for the race detector.
func TestConcurrent(t *testing.T) {
	c := newClock(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			fired := make(chan struct{}, 1)
			timer := c.AfterFunc(time.Hour, func() { fired <- struct{}{} })
			for range 200 {
				timer.Reset(time.Duration(rand.IntN(200)) * time.Microsecond)
				<-fired
				timer.Reset(time.Hour)
				timer.Stop()
			}
		})
	}
	wg.Wait()
}
