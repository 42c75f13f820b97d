package main

import (
	"time"

	"github.com/shivad/shivad/scheduler"
)

// epoch is the time at which simulations begin.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// A clock is the virtual time of one simulation, for a single goroutine: a 4-ary heap of events, by
// time and then by the order in which they were set. The clock of package schedtest has locks, and
// takes a third of the time of a simulation with millions of messages a second.
type clock struct {
	now    int64 // ns since epoch
	number uint64
	heap   []entry
}

type entry struct {
	at     int64
	number uint64
	event  *event
}

// An event is the arrival of a message or the call of a function.
type event struct {
	f       func()   // nil: the message arrives
	message *message // set if f is nil
	index   int      // in the heap; -1: not in it
}

func (c *clock) Now() time.Time { return epoch.Add(time.Duration(c.now)) }

// since is the time since the start.
func (c *clock) since() time.Duration { return time.Duration(c.now) }

// AfterFunc calls f once d has passed.
func (c *clock) AfterFunc(d time.Duration, f func()) scheduler.Timer {
	t := &timer{c, event{f: f, index: -1}}
	t.Reset(d)
	return t
}

// set schedules an event at a time that is not in the past.
func (c *clock) set(e *event, at int64) {
	if e.index >= 0 {
		c.remove(e.index)
	}
	c.number++
	c.heap = append(c.heap, entry{})
	c.up(len(c.heap)-1, entry{max(at, c.now), c.number, e})
}

// next returns the time of the next event; false: there is none.
func (c *clock) next() (at int64, ok bool) {
	if len(c.heap) == 0 {
		return 0, false
	}
	return c.heap[0].at, true
}

// take advances the time to the next event, and returns the event.
func (c *clock) take() *event {
	e := c.heap[0]
	c.now = e.at
	c.remove(0)
	return e.event
}

func (c *clock) remove(i int) {
	c.heap[i].event.index = -1
	last := len(c.heap) - 1
	moved := c.heap[last]
	c.heap[last] = entry{}
	if c.heap = c.heap[:last]; i == last {
		return
	}
	if i > 0 && moved.before(c.heap[(i-1)/4]) {
		c.up(i, moved)
	} else {
		c.down(i, moved)
	}
}

func (e entry) before(o entry) bool { return e.at < o.at || e.at == o.at && e.number < o.number }

func (c *clock) put(i int, e entry) {
	c.heap[i] = e
	e.event.index = i
}

func (c *clock) up(i int, e entry) {
	for i > 0 && e.before(c.heap[(i-1)/4]) {
		c.put(i, c.heap[(i-1)/4])
		i = (i - 1) / 4
	}
	c.put(i, e)
}

func (c *clock) down(i int, e entry) {
	for {
		first := 4*i + 1
		if first >= len(c.heap) {
			break
		}
		least := first
		for k := first + 1; k < min(first+4, len(c.heap)); k++ {
			if c.heap[k].before(c.heap[least]) {
				least = k
			}
		}
		if !c.heap[least].before(e) {
			break
		}
		c.put(i, c.heap[least])
		i = least
	}
	c.put(i, e)
}

// A timer is an event whose time may be changed.
type timer struct {
	clock *clock
	event event
}

func (t *timer) Reset(d time.Duration) bool {
	active := t.event.index >= 0
	t.clock.set(&t.event, t.clock.now+int64(max(0, d)))
	return active
}

func (t *timer) Stop() bool {
	active := t.event.index >= 0
	if active {
		t.clock.remove(t.event.index)
	}
	return active
}
