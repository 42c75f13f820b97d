package schedtest

import (
	"container/heap"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Clock is a [scheduler.Clock] that stands still until it is advanced. Timers fire inside
// Advance, on the caller's goroutine, in order of their times. With it a scheduler and its
// workers run on one goroutine, deterministically and without waiting.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	seq    uint64
	timers timers
}

// NewClock returns a clock at an arbitrary, fixed time.
func NewClock() *Clock { return &Clock{now: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)} }

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc calls f once the clock has been advanced by d.
func (c *Clock) AfterFunc(d time.Duration, f func()) scheduler.Timer {
	t := &timer{clock: c, f: f, index: -1}
	t.Reset(d)
	return t
}

// Advance moves the clock forward by d, and fires the timers that are due, each at its time.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	end := c.now.Add(d)
	for len(c.timers) > 0 && !c.timers[0].at.After(end) {
		t := heap.Pop(&c.timers).(*timer)
		if t.at.After(c.now) {
			c.now = t.at
		}
		c.mu.Unlock()
		t.f()
		c.mu.Lock()
	}
	c.now = end
	c.mu.Unlock()
}

// Step moves the clock to the next timer and fires it. It returns false if there is none.
func (c *Clock) Step() bool {
	c.mu.Lock()
	if len(c.timers) == 0 {
		c.mu.Unlock()
		return false
	}
	d := c.timers[0].at.Sub(c.now)
	c.mu.Unlock()
	c.Advance(max(0, d))
	return true
}

// Timers returns the number of active timers.
func (c *Clock) Timers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

type timer struct {
	clock *Clock
	f     func()
	at    time.Time
	seq   uint64
	index int // in the heap; -1: it will not fire
}

func (t *timer) Reset(d time.Duration) bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	active := t.index >= 0
	if active {
		heap.Remove(&c.timers, t.index)
	}
	c.seq++
	t.at, t.seq = c.now.Add(max(0, d)), c.seq
	heap.Push(&c.timers, t)
	return active
}

func (t *timer) Stop() bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	active := t.index >= 0
	if active {
		heap.Remove(&c.timers, t.index)
	}
	return active
}

// timers is a heap by time, then by when they were set.
type timers []*timer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].seq < h[j].seq
}
func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timers) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}
