package cache

import (
	"container/heap"
	"time"
)

// waiting holds the followers that have a deadline, and the one timer for all of them. The cache's
// mutex guards it.
type waiting struct {
	calls byDeadline
	timer *time.Timer
	armed time.Time // when the timer fires; zero: not set
}

// add adds a follower; the timer calls tick. The timer is only ever moved to an earlier time: if it
// fires too early, it is set again.
func (w *waiting) add(c *Call, tick func()) {
	if c.request.Deadline.IsZero() {
		return
	}
	heap.Push(&w.calls, c)
	w.arm(tick)
}

func (w *waiting) arm(tick func()) {
	if len(w.calls) == 0 {
		return
	}
	at := w.calls[0].request.Deadline
	if !w.armed.IsZero() && !at.Before(w.armed) {
		return
	}
	w.armed = at
	if w.timer == nil {
		w.timer = time.AfterFunc(time.Until(at), tick)
	} else {
		w.timer.Reset(time.Until(at))
	}
}

// remove removes a follower if it is present.
func (w *waiting) remove(c *Call) {
	if c.place > 0 {
		heap.Remove(&w.calls, c.place-1)
	}
}

// tick answers the followers whose deadline has passed.
func (k *Cache) tick() {
	var late *Call
	k.mu.Lock()
	w := &k.waiting
	w.armed = time.Time{}
	for now := time.Now(); len(w.calls) > 0 && !w.calls[0].request.Deadline.After(now); {
		c := w.calls[0]
		c.leave()
		c.next, late = late, c
	}
	w.arm(k.tick)
	k.mu.Unlock()
	for late != nil {
		c := late
		late, c.next = c.next, nil
		c.answer(errLate)
	}
}

type byDeadline []*Call

func (h byDeadline) Len() int           { return len(h) }
func (h byDeadline) Less(i, j int) bool { return h[i].request.Deadline.Before(h[j].request.Deadline) }
func (h byDeadline) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i+1, j+1
}

func (h *byDeadline) Push(x any) {
	c := x.(*Call)
	*h = append(*h, c)
	c.place = len(*h)
}

func (h *byDeadline) Pop() any {
	last := len(*h) - 1
	c := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	c.place = 0
	return c
}
