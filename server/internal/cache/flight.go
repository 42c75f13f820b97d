package cache

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

var (
	errLate = fmt.Errorf("%w: it passed while the request waited for the answer to an equal one",
		scheduler.ErrDeadlineExceeded)
	errCanceled = fmt.Errorf("%w: the caller gave up", scheduler.ErrCanceled)
)

// A flight is one execution for all requests with the same key. The scheduler has the leader's
// request and knows nothing of the followers. When a leader fails for a reason of its own, the
// first follower becomes the leader.
//
// For the scheduler it is the owner of its leader's request. It outlives that request, so an answer
// that comes after the request has ended can still be cached.
type flight struct {
	// Set once.

	version *Version
	key     key
	clears  uint64 // of the cache when it began

	// Guarded by the cache's mutex; the leader is the same from Submit to Complete.

	leader      *Call
	first, last *Call // followers, in order of arrival
	submitting  bool  // a goroutine is in submit
	next        *Call // the next leader, which that goroutine submits
}

// A Call is the cache's part of a request, between Find and the answer. The zero Call with a
// Version is ready.
type Call struct {
	// Set by the submitter.

	Version *Version // nil: the cache is not used
	Salt    string   // part of the key

	// Guarded by the cache's mutex until the request is answered.

	request    *scheduler.Request
	owner      scheduler.Completer // of a leader, whose request has the Call as its Owner
	flight     *flight
	following  bool
	canceled   bool  // of a leader
	prev, next *Call // other followers
	place      int   // index in waiting, from 1; 0: no deadline
}

// Name implements scheduler.Named.
func (f *flight) Name() string {
	if o, ok := f.leader.owner.(scheduler.Named); ok {
		return o.Name()
	}
	return "of the cache"
}

// Find looks up the answer to r, which must be ready to be submitted, Owner included. true: the
// cache completes r, and may have done so. false: the caller must submit r to the scheduler now,
// since followers may wait for it; until r is complete it has another Owner. The Call must not move
// until r is complete. now is the current time.
func (c *Call) Find(r *scheduler.Request, now time.Time) bool {
	if !r.Deadline.IsZero() && !r.Deadline.After(now) {
		return false // the scheduler has an error for this
	}
	v := c.Version
	k, key := v.cache, v.key(r, c.Salt)
	e := k.lookup(key)
	if e == nil {
		var ours bool
		if e, ours = c.join(k, key, r); e == nil {
			return ours
		}
	}
	v.counts.Hits.Add(1)
	give(r, e.outputs)
	e.release()
	r.Owner.Complete(r)
	return true
}

// join makes r a follower of its key's flight (true) or the leader of a new one (false), or finds
// that the answer has arrived meanwhile.
func (c *Call) join(k *Cache, key key, r *scheduler.Request) (*entry, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.flights[key]; f != nil {
		c.request, c.flight, c.following, c.canceled = r, f, true, false
		f.append(c)
		k.waiting.add(c, k.tick)
		c.Version.counts.Shared.Add(1)
		return nil, true
	}
	// An answer is stored before its flight ends.
	if e := k.lookup(key); e != nil {
		return e, false
	}
	c.Version.counts.Misses.Add(1)
	if k.closed {
		return nil, false
	}
	f := &flight{version: c.Version, key: key, clears: k.clears}
	k.flights[key] = f
	c.lead(f, r)
	return nil, false
}

// lead makes r the request that the scheduler gets from f. The cache's mutex is held.
func (c *Call) lead(f *flight, r *scheduler.Request) {
	c.request, c.flight, c.following, c.canceled = r, f, false, false
	f.leader = c
	c.owner, r.Owner = r.Owner, f
}

// Cancel cancels the request because its client has disconnected. true: the request has been
// completed. false: it does not wait here, and the caller must cancel it in the scheduler if it was
// submitted.
func (c *Call) Cancel() bool {
	k := c.Version.cache
	k.mu.Lock()
	if !c.following {
		c.canceled = true
		k.mu.Unlock()
		return false
	}
	c.leave()
	k.mu.Unlock()
	c.answer(errCanceled)
	return true
}

// ReceiveLate implements scheduler.LateReceiver: an answer that arrives too late for the leader can
// still be cached.
func (f *flight) ReceiveLate(outputs []tensor.Tensor) {
	v := f.version
	k := v.cache
	e := k.newEntry(v, outputs)
	if e == nil {
		return
	}
	defer e.release()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !v.dropped && f.clears == k.clears && !k.closed {
		k.store(f.key, e)
	}
}

// Complete takes the scheduler's result for the leader's request.
func (f *flight) Complete(r *scheduler.Request) {
	c, k := f.leader, f.version.cache
	var e *entry
	failed := failedRows(r)
	if r.Err == nil && failed == nil {
		e = k.newEntry(c.Version, r.Outputs)
	}
	k.mu.Lock()
	var next, followers *Call
	if own(r.Err) && f.first != nil {
		next = f.first
		next.leave()
		next.lead(f, next.request)
		if f.submitting {
			f.next, next = next, nil
		} else {
			f.submitting = true
		}
	} else {
		delete(k.flights, f.key)
		if e != nil && f.clears == k.clears && !c.Version.dropped {
			k.store(f.key, e)
		}
		followers = f.first
		for at := followers; at != nil; at = at.next {
			k.waiting.remove(at)
			at.following = false
		}
		f.first, f.last, f.leader = nil, nil, nil
	}
	r.Owner = c.owner
	c.flight, c.owner, c.request = nil, nil, nil
	k.mu.Unlock()

	outputs := r.Outputs
	if e != nil {
		outputs = e.outputs
	} else if followers != nil {
		outputs = cloneShapes(outputs)
	}
	for followers != nil {
		at := followers
		followers = at.next
		at.next, at.prev = nil, nil
		if r.Err != nil {
			at.answer(r.Err)
			continue
		}
		give(at.request, outputs)
		if failed != nil {
			at.request.Rare.Failed = failed // it has Holes, too: they are part of the key
		}
		at.finish()
	}
	if e != nil {
		e.release()
	}
	r.Owner.Complete(r)
	if next != nil {
		f.submit(next)
	}
}

// failedRows returns the rows that have no outputs, though the request has an answer. Such an
// answer is not kept.
func failedRows(r *scheduler.Request) []scheduler.RowError {
	if r.Rare == nil {
		return nil
	}
	return r.Rare.Failed
}

// cloneShapes copies the shapes of outputs, so that they outlive the request.
func cloneShapes(outputs []tensor.Tensor) []tensor.Tensor {
	outputs = slices.Clone(outputs)
	for i := range outputs {
		outputs[i].Shape = slices.Clone(outputs[i].Shape)
	}
	return outputs
}

// own reports whether an error concerns only its request, and not all equal requests.
func own(err error) bool {
	if errors.Is(err, scheduler.ErrDeadlineExceeded) || errors.Is(err, scheduler.ErrCanceled) {
		return true
	}
	_, refused := errors.AsType[*scheduler.OverloadedError](err)
	return refused
}

// submit hands a new leader to the scheduler; if it is refused at once, the next follower, and so
// on. It loops instead of recursing, since there may be thousands.
func (f *flight) submit(c *Call) {
	k := f.version.cache
	for c != nil {
		k.mu.Lock()
		r, canceled := c.request, c.canceled
		k.mu.Unlock()
		// The follower may have been cancelled since it was chosen. A cancellation between here and
		// Submit is lost, and costs one execution.
		if canceled {
			fail(r, errCanceled)
			f.Complete(r)
		} else {
			k.submit(r)
		}
		k.mu.Lock()
		c = f.next
		f.next = nil
		f.submitting = c != nil
		k.mu.Unlock()
	}
}

// append adds a follower. The cache's mutex is held.
func (f *flight) append(c *Call) {
	if c.prev = f.last; c.prev == nil {
		f.first = c
	} else {
		c.prev.next = c
	}
	f.last = c
}

// leave removes a follower from its flight. The cache's mutex is held.
func (c *Call) leave() {
	f := c.flight
	if c.prev == nil {
		f.first = c.next
	} else {
		c.prev.next = c.next
	}
	if c.next == nil {
		f.last = c.prev
	} else {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	f.version.cache.waiting.remove(c)
	c.following = false
}

// answer completes a former follower with an error.
func (c *Call) answer(err error) {
	fail(c.request, err)
	c.finish()
}

// finish completes a former follower whose request has its answer. The Call may be used again
// before it returns.
func (c *Call) finish() {
	r := c.request
	c.request, c.flight = nil, nil
	r.Owner.Complete(r)
}
