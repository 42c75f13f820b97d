// Package clock is a clock whose timers are as exact as the kernel's.
//
// Timers of Go's runtime wait in epoll_wait, whose timeout is in whole milliseconds: if nothing
// else wakes the process they are up to a millisecond late, which is as late as an answer at its
// deadline may be. Here one timerfd stands for the earliest of all timers. The runtime waits for it
// as for a socket, so it costs no thread and wakes within tens of microseconds.
package clock

import (
	"container/heap"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
)

// A Clock is a [scheduler.Clock]. Its methods, and those of its timers, may be called from any
// goroutine.
type Clock struct {
	// Set once.

	epoch time.Time
	fd    int // of alarm, which only run reads
	alarm *os.File
	done  chan struct{} // closed when run has returned

	mu      sync.Mutex
	timers  timers
	armed   int64 // when alarm goes off, in ns since epoch; 0: not set
	running bool  // run was started, with the first timer
	closed  bool
}

// New makes a clock. It has a descriptor, and a goroutine from the first timer on; Close releases
// both.
func New() (*Clock, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &Clock{epoch: time.Now(), fd: fd, alarm: os.NewFile(uintptr(fd), "timerfd"), done: make(chan struct{})}, nil
}

// Close ends the clock: no timer fires after it has returned, though functions of timers that fired
// may still run.
func (c *Clock) Close() {
	c.mu.Lock()
	c.closed = true
	running := c.running
	c.mu.Unlock()
	c.alarm.Close()
	if running {
		<-c.done
	}
}

// Now is [time.Now].
func (c *Clock) Now() time.Time { return time.Now() }

// AfterFunc calls f in its own goroutine once d has passed, as [time.AfterFunc] does.
func (c *Clock) AfterFunc(d time.Duration, f func()) scheduler.Timer {
	t := &timer{clock: c, f: f, index: -1}
	t.Reset(d)
	return t
}

// run waits for the alarm and fires the timers that are due, until Close.
func (c *Clock) run() {
	defer close(c.done)
	var count [8]byte // how many times it went off: always once
	for {
		if _, err := c.alarm.Read(count[:]); errors.Is(err, os.ErrClosed) {
			return
		} else if err != nil {
			// A bug: nothing else can happen to a timerfd, and without it no deadline would be met.
			panic(err)
		}
		c.fire()
	}
}

func (c *Clock) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = 0
	now := int64(time.Since(c.epoch))
	for len(c.timers) > 0 && c.timers[0].at <= now && !c.closed {
		go heap.Pop(&c.timers).(*timer).f()
	}
	c.armLocked(now)
}

// armLocked sets the alarm for the earliest timer. An alarm that is too early stays as it is: it
// finds nothing due.
func (c *Clock) armLocked(now int64) {
	if c.closed || len(c.timers) == 0 || c.armed != 0 && c.armed <= c.timers[0].at {
		return
	}
	if !c.running {
		c.running = true
		go c.run()
	}
	c.armed = c.timers[0].at
	in := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, c.armed-now))} // 0 would switch it off
	if err := unix.TimerfdSettime(c.fd, 0, &in, nil); err != nil {
		// A bug: the descriptor is ours and the time is valid.
		panic(os.NewSyscallError("timerfd_settime", err))
	}
}

// timer is a [scheduler.Timer].
type timer struct {
	clock *Clock
	f     func()

	// Guarded by clock.mu.
	at    int64 // ns since the clock's epoch
	index int   // in the heap; -1: not set
}

// Reset sets the timer again, and reports whether it was set before.
func (t *timer) Reset(d time.Duration) bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	set := t.index >= 0
	now := int64(time.Since(c.epoch))
	t.at = now + int64(max(d, 0))
	if set {
		heap.Fix(&c.timers, t.index)
	} else {
		heap.Push(&c.timers, t)
	}
	c.armLocked(now)
	return set
}

// Stop keeps the timer from firing, and reports whether it was set.
func (t *timer) Stop() bool {
	c := t.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.index < 0 {
		return false
	}
	heap.Remove(&c.timers, t.index)
	return true
}

// timers is a heap by time, the earliest first.
type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at < h[j].at }
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
