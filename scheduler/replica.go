package scheduler

import (
	"slices"
	"time"
)

// A Replica is one worker of a model, as made by [Scheduler.AddReplica].
type Replica struct {
	// Set once.

	m        *Model
	label    string
	worker   Worker
	declared int // most rows that the container takes; 0: it did not say
	ownSlots int // batches it wants in flight; 0: it did not say

	// Guarded by the model's mutex.

	state    replicaState
	slots    int
	max      int // most rows per batch
	profile  profile
	strategy strategy
	inflight []*Batch // in the order they were sent
	free     int64    // when its last answer came: it could not start on the next batch earlier
	round    uint64   // the last round of dispatching in which it had its turn
	single   bool     // its last batch was an isolated one
	overhead overhead
	next     plan // what bounds its next batch, see plan
	drained  []func()
	batches  uint64
	rows     uint64
}

// ReplicaOptions are optional.
type ReplicaOptions struct {
	Label string // for people: an address, a host
	Slots int    // batches it wants in flight; 0: what the model's configuration says
}

type replicaState uint8

const (
	replicaLive     replicaState = iota
	replicaSuspect               // it did not answer in time, and gets nothing until it does
	replicaDraining              // it gets nothing more
	replicaGone
)

var replicaStates = [...]string{"live", "suspect", "draining", "gone"}

func (s replicaState) String() string { return replicaStates[s] }

// bound sets what depends on the model's configuration.
func (r *Replica) bound(c *core) {
	r.max = c.maxBatch(r.declared)
	r.profile.max = r.max
	if r.slots = c.cfg.Slots; r.ownSlots > 0 {
		r.slots = min(r.ownSlots, maxSlots)
	}
}

// plan is what bounds the next batch, of rows of the given size (0: any). It is the replica's own and holds
// until the next call: strategies take it through an interface, and a new one each time would be garbage.
func (r *Replica) plan(c *core, start, rowBytes int64) *plan {
	p := &r.next
	*p = plan{start: start, max: r.max, maxWhy: CloseFull, objective: int64(c.cfg.Objective), shed: *c.cfg.Shed, prof: &r.profile}
	if rowBytes > 0 {
		if n := c.cfg.BatchBytes / rowBytes; n < int64(p.max) {
			p.max, p.maxWhy = max(1, int(n)), CloseLimit
		}
	}
	return p
}

// end is when the batches in flight are predicted to be answered; never if nothing is known. It follows
// from the last answer, so every answer corrects it.
func (r *Replica) end() int64 {
	at := r.free
	for _, b := range r.inflight {
		if b.typical == 0 {
			return never
		}
		at = max(at, b.sent+b.lead) + b.typical
	}
	return at
}

// ready is when the replica may be sent another batch, and when it could start on it. Never: not before it
// answers. An idle one may at once. The next batch for a busy one is held back until the predicted end of
// the ones in flight, less twice the overhead of dispatching: early enough that the container does not
// wait, and late enough that the batch is not made while more rows could join.
func (r *Replica) ready(now int64) (at, start int64) {
	if r.state != replicaLive || len(r.inflight) >= r.slots {
		return never, never
	}
	over := r.overhead.value(r.profile.typical(1))
	if len(r.inflight) == 0 {
		return now, now + over
	}
	end := r.end()
	if end == never {
		return never, never
	}
	return max(now, end-2*over), max(end, now+over)
}

// timeout is when the oldest batch has taken too long; never if none is out, or the replica is suspect.
func (r *Replica) timeout(limit time.Duration) int64 {
	for _, b := range r.inflight {
		if b.state == batchOut {
			return max(b.sent, r.free) + int64(limit)
		}
	}
	return never
}

// learn takes the execution time of an answered batch in.
func (r *Replica) learn(b *Batch, now int64) {
	if b.idle {
		// It was under way there and back while the replica had nothing to do.
		took := now - b.sent
		r.overhead.observe(took, b.typical)
		r.profile.learn(b.Rows, max(took-b.lead, took/2), now)
	} else {
		r.overhead.pipelined = true
		r.profile.learn(b.Rows, now-max(b.sent, r.free), now)
	}
	r.strategy.learn(b.Rows, b.limit, now-max(b.sent, r.free))
	r.batches++
	r.rows += uint64(b.Rows - b.padding)
}

// done takes a batch out of those in flight.
func (r *Replica) done(b *Batch) {
	if i := slices.Index(r.inflight, b); i >= 0 {
		r.inflight = slices.Delete(r.inflight, i, i+1)
	}
}

// overhead is how long a batch is under way, to the container and back, apart from its execution. It cannot
// be seen in a batch alone. But a batch that waited in the container for the one before it shows execution
// only, from answer to answer, while a batch to an idle replica shows both; the difference is the overhead.
// The median of the last few is noisy by about a tenth of the execution time's own noise, which is what a
// batch is late or early by anyway.
type overhead struct {
	recent    [15]int64
	kept, at  int
	median    int64
	pipelined bool // batches without overhead were seen, so that the profile does not contain it
}

const (
	minOverhead = int64(100 * time.Microsecond)
	maxOverhead = int64(5 * time.Millisecond)
)

// observe learns from a batch sent to an idle replica.
func (o *overhead) observe(took, typical int64) {
	if !o.pipelined || typical == 0 {
		return
	}
	o.recent[o.at] = took - typical
	o.at = (o.at + 1) % len(o.recent)
	o.kept = min(o.kept+1, len(o.recent))
	sorted := o.recent
	slices.Sort(sorted[:o.kept])
	o.median = sorted[o.kept/2]
}

// value is the overhead, within reason: never more than a quarter of the shortest execution.
func (o *overhead) value(shortest float64) int64 {
	return min(max(o.median, minOverhead), maxOverhead, int64(shortest/4))
}
