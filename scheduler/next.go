package scheduler

import (
	"sync"
	"sync/atomic"
)

// SubmitNext submits requests that an answer has made possible, such as those to the next model of
// a pipeline. Those that the answers of one batch make possible are dispatched together, after its
// last one. Otherwise the first of them would take an idle replica alone, and the others would wait
// for it: each batch of one model would be two of the next one.
func (s *Scheduler) SubmitNext(rs ...*Request) {
	if !s.successors.hold(rs) {
		s.Submit(rs...)
	}
}

// successors are the requests of SubmitNext that wait until a batch is delivered. That takes
// microseconds, since owners do not block. Batches that are delivered at the same time are not told
// apart: the first one to be delivered releases what there is.
type successors struct {
	delivering atomic.Int32 // batches
	// waiting is len(held), or what it is about to be: hold writes it before it reads delivering,
	// and release reads it after it has written that, so that batches that make nothing possible,
	// nearly all, take no lock.
	waiting atomic.Int32

	mu    sync.Mutex // guards all below
	held  []*Request
	spare []*Request // empty: memory for held
}

// hold keeps requests until release, if a batch is being delivered.
func (n *successors) hold(rs []*Request) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.waiting.Add(int32(len(rs)))
	if n.delivering.Load() == 0 {
		n.waiting.Add(-int32(len(rs)))
		return false
	}
	n.held = append(n.held, rs...)
	return true
}

// release submits what waits, once a batch is delivered.
func (s *Scheduler) release() {
	n := &s.successors
	if n.delivering.Add(-1); n.waiting.Load() == 0 {
		return
	}
	n.mu.Lock()
	held := n.held
	n.waiting.Add(-int32(len(held)))
	n.held, n.spare = n.spare, nil
	n.mu.Unlock()
	if len(held) == 0 {
		return
	}
	s.Submit(held...)
	clear(held)
	n.mu.Lock()
	n.spare = held[:0]
	n.mu.Unlock()
}
