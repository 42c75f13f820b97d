package scheduler

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// A Replica is one worker of a model, made by [Scheduler.AddReplica].
type Replica struct {
	// Set once.

	m        *Model
	label    string
	worker   Worker
	declared int // largest batch by the container's declaration; 0: none declared
	options  ReplicaOptions

	// Guarded by the model's mutex.

	state       replicaState
	concurrency int // batches that it executes at once
	// The most batches in flight: executing ones, and others that are queued in the container.
	slots       int
	max         int // most rows per batch
	profile     profile
	strategy    strategy
	inflight    []*Batch // in the order they were sent
	overdue     []*Batch // batches given up and not answered yet, see suspect.go
	probeAt     int64    // when it may be probed, while it is suspect
	reported    bool     // Silent was called
	free        int64    // when its latest answer arrived
	ends        []ending // scratch of next
	failures    int      // consecutive failed batches
	failed      uint64   // batches that failed or were not answered in time
	lastError   error    // of the latest of these batches; nil: none
	lastFailed  int64    // when that was
	round       uint64   // the last round of dispatching that considered it
	retries     int      // consecutive batches that were retries
	ceiling     ceiling
	overhead    overhead
	preparing   preparing
	trials      trials
	planned     plan // bounds of its next batch, see plan
	sharing     sharing
	contributes contribution // to the model's capacity
	drained     []func()
	batches     uint64
	rows        uint64
	busied      int64 // ns of execution, summed over batches
}

// ReplicaOptions are the options of a replica. The zero value is valid.
type ReplicaOptions struct {
	Label string // for operators: an address, a host
	// Concurrency is the number of batches that it executes at once, each of which is planned on
	// its own. 0 means 1, more than 64 means 64.
	Concurrency int
	// Slots is the number of batches that it wants in flight. 0: ModelConfig.Slots or, if that is
	// also 0, Concurrency and one more.
	Slots int
	// Serial makes the default of Slots 1: the next batch is sent only after the answer.
	Serial bool
	// Silent is called, with no lock held, when the replica has answered nothing for several
	// execution timeouts although it had batches to answer. It should end the worker and then
	// call Remove. If it is nil the replica stays suspect until it answers.
	Silent func(reason error)
	// Replaced is called, with no lock held, when the replica, which is not live, belongs to a
	// model that was replaced or forgotten: nobody will ask it again, even if it recovers. Its
	// worker should register anew. If it is nil the replica is drained.
	Replaced func(reason error)
	// Returns is how long after its loss a successor of the replica may be expected. Until then
	// requests wait for it if no other replica is live. 0: nobody is known to start one.
	Returns time.Duration
	// Feedback is called, with no lock held, with the feedback for the model; see
	// [Model.Feedback]. It must not block. nil: the replica does not want feedback.
	Feedback func(*Feedback)
	// Offer is called, with no lock held, to report the rows waiting for the replica while its
	// container is shared, see [Replica.Share]. It must not block. nil: the container is never
	// shared.
	Offer func(Offer)
}

// Stats returns a snapshot of the replica.
func (r *Replica) Stats() ReplicaStats {
	now := r.m.sched.now()
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.stats(&r.m.core, now)
}

type replicaState uint8

const (
	replicaLive     replicaState = iota
	replicaSuspect               // it did not answer in time and gets only probes until it answers
	replicaDraining              // it gets nothing more
	replicaGone
)

var replicaStates = [...]string{ReplicaLive, ReplicaSuspect, ReplicaDraining, "gone"}

func (s replicaState) String() string { return replicaStates[s] }

// bound applies the model's configuration.
func (r *Replica) bound(c *core) {
	r.max = c.maxBatch(r.declared)
	r.profile.max = r.max
	r.concurrency = max(1, r.options.Concurrency)
	switch {
	case r.options.Slots > 0:
		r.slots = r.options.Slots
	case c.cfg.Slots > 0:
		r.slots = c.cfg.Slots
	case r.options.Serial:
		r.slots = 1
	default:
		r.slots = r.concurrency + 1
	}
	r.slots = min(r.slots, MaxSlots)
	r.concurrency = min(r.concurrency, r.slots)
}

// plan returns the bounds of the next batch, for rows of the given size in bytes (0: any). The
// result is valid until the next call: strategies take it through an interface, so a new plan for
// each call would be allocated on the heap.
func (r *Replica) plan(c *core, start, rowBytes int64) *plan {
	p := &r.planned
	*p = plan{share: r.sharing.share, granted: r.sharing.on, target: r.sharing.target, start: start, max: r.max,
		maxWhy: CloseFull, objective: int64(c.cfg.Objective), shed: *c.cfg.Shed, prof: &r.profile, trials: &r.trials}
	p.max = p.own(p.max)
	if most := p.own(c.sizeLimit(r, start)); most < p.max {
		p.max, p.maxWhy = most, CloseFailures
	}
	if ceiling := c.ceilingOf(r); ceiling > 0 && p.max > p.own(ceiling) {
		p.ceiling = p.own(ceiling)
	}
	if rowBytes > 0 {
		if n := c.cfg.BatchBytes / rowBytes; n < int64(p.max) {
			p.max, p.maxWhy = max(1, int(n)), CloseBytes
		}
	}
	return p
}

// notStarted marks a batch that is queued in the container until another one is answered.
const notStarted = int64(-1)

// executing counts the batches in flight that the container has started.
func (r *Replica) executing() (n int) {
	for _, b := range r.inflight {
		if b.began != notStarted {
			n++
		}
	}
	return n
}

// busy reports whether the container executes as many batches as it can.
func (r *Replica) busy() bool { return r.executing() >= r.lanes() }

// begin records which batches the container starts, in the order in which they were sent. It is
// called whenever a batch is sent or answered.
func (r *Replica) begin(now int64) {
	for _, b := range r.overdue { // they were sent before those in flight
		if b.began == notStarted && r.blockedLanes() < r.concurrency {
			b.began = now
		}
	}
	n := r.executing()
	for _, b := range r.inflight {
		if n >= r.lanes() {
			return
		}
		if b.began == notStarted {
			b.began = now
			n++
		}
	}
}

// execTime is the execution time so far of a batch in flight. A batch that is answered before it
// was recorded as begun cannot have started before the latest answer, nor before it was sent.
func (r *Replica) execTime(b *Batch, now int64) int64 {
	if b.began == notStarted {
		return now - max(b.sent, r.free)
	}
	return now - b.began
}

// An ending is when a batch is predicted to be answered, and how much later it may plausibly be.
type ending struct{ at, slack int64 }

// next is the ending after which a busy replica is predicted to start another batch; at is never if
// nothing is known. The prediction derives from the start of each batch, so every answer corrects
// it. next leaves in r.ends the endings of the batches that the replica will be executing at once
// by then.
func (r *Replica) next() ending {
	r.ends = r.ends[:0]
	for _, b := range r.inflight {
		if b.typical == 0 {
			return ending{at: never}
		}
		if b.began != notStarted {
			r.ends = append(r.ends, ending{max(b.began, b.ready) + b.lead + b.typical, b.predicted - b.typical})
		}
	}
	for _, b := range r.inflight {
		if b.began == notStarted { // it starts after the batch that ends first
			first := slices.MinFunc(r.ends, ending.compare)
			r.ends[slices.Index(r.ends, first)] = ending{max(first.at, b.ready) + b.typical, b.predicted - b.typical}
		}
	}
	return slices.MinFunc(r.ends, ending.compare)
}

func (e ending) compare(o ending) int { return cmp.Compare(e.at, o.at) }

// begins is when the replica could start a batch of some rows that is sent now; never if unknown.
func (r *Replica) begins(rows int, now int64) int64 {
	if r.sharing.on && !r.sharing.granted {
		return never
	}
	begins := now + r.overhead.value(r.profile.typical(1)) + r.preparing.of(rows)
	if r.busy() {
		begins = max(begins, r.next().at)
	}
	return begins
}

// fastBatch is the execution time, in ns, below which the next batch is sent at once behind the one
// in flight: no timer is precise enough to hold it back.
const fastBatch = 200_000

// ready is when the replica may be sent another batch, of some rows, and when it could start that
// batch. at is never if the replica must answer first. A replica that is not busy may get a batch
// at once. The next batch of a busy replica is held back, so that more rows can join it, until
// twice the dispatch overhead, and the time of its preparation, before the predicted end of the
// batches in flight, so that the container does not wait for it. If the end is not known that
// precisely, the batch waits for the answer: it would be planned with the uncertainty of two
// executions, which costs more rows than the container's pause. See also waits and complete.
//
// A shared replica may be sent a batch when it has a grant, also while the previous answer is on
// its way. Its times are measured from the grant to the answer, whatever they consist of.
func (r *Replica) ready(rows int, now int64) (at, start int64) {
	switch {
	case r.state != replicaLive || r.sharing.on && !r.sharing.granted || r.secluded():
		return never, never
	case r.sharing.on && r.room() >= 0:
		return now, now
	case r.room() <= 0:
		return never, never
	}
	over, prepare := r.overhead.value(r.profile.typical(1)), r.preparing.of(rows)
	if !r.busy() {
		return now, now + over + prepare
	}
	end := r.next()
	if end.at == never {
		return never, never
	}
	if r.fast() {
		return now, max(end.at, now+over+prepare)
	}
	if end.slack > 2*over+prepare && r.batches%probeOverhead != 0 {
		return never, never
	}
	return max(now, end.at-2*over-prepare), max(end.at, now+over+prepare)
}

// A replica that fails toleratedFailures batches in a row gets a batch only now and then, while
// another replica does better. Otherwise a replica that fails at once would look like the fastest,
// and get nearly every request.
const (
	toleratedFailures = 3
	// After the last tolerated failure; doubled with each further failure.
	firstHoldOff = int64(100 * time.Millisecond)
	maxHoldOff   = int64(5 * time.Second)
)

// sound reports whether the replica is live and has fewer than toleratedFailures failures in a row.
func (r *Replica) sound() bool { return r.state == replicaLive && r.failures < toleratedFailures }

// heldOff is the time until which a replica that is not sound gets nothing while another one is
// sound.
func (r *Replica) heldOff() int64 {
	const most = 6 // doublings: the result is above maxHoldOff
	return r.free + min(firstHoldOff<<min(r.failures-toleratedFailures, most), maxHoldOff)
}

// judge counts a batch as answered or failed. A lack of memory for the answer, or a wrong input,
// is not the replica's failure.
func (r *Replica) judge(err error) {
	switch {
	case err == nil:
		r.failures = 0
	case outcomeOfFailure(err) == OutcomeContainerFailed:
		r.failures++
	}
}

// blame records the replica's latest failure.
func (r *Replica) blame(err error, now int64) {
	r.failed++
	r.lastError, r.lastFailed = err, now
}

// condition is the state in words, for operators.
func (r *Replica) condition() string {
	if r.state == replicaLive && r.failures >= toleratedFailures {
		return ReplicaFailing
	}
	return r.state.String()
}

// fast reports whether the batches in flight are too short to hold the next one back.
func (r *Replica) fast() bool { return r.inflight[len(r.inflight)-1].typical < fastBatch }

// timeout is when the first of the executing batches exceeds the limit; never if none is executing.
// Batches that are queued in the container do not count yet. Answers to other batches do not extend
// it.
func (r *Replica) timeout(limit time.Duration) int64 {
	at := int64(never)
	for _, b := range r.inflight {
		if b.began != notStarted {
			at = min(at, b.overdue(int64(limit)))
		}
	}
	return at
}

// learn adds the execution time of an answered batch to the profile.
func (r *Replica) learn(b *Batch, now int64) {
	took, rows := r.execTime(b, now), b.Rows
	if b.executed.rows > 0 { // by a shared container, with other servers' rows
		rows = max(rows, min(b.executed.rows, r.max))
		took = max(took-b.executed.queued, took/8)
	}
	prepared := min(b.prepared, now-b.sent)
	if r.sharing.on {
		prepared = 0 // its times are measured as a whole, see ready
	}
	if prepared > 0 {
		took = max(min(took, now-b.sent-prepared), took/8)
	}
	r.preparing.learn(b.Rows, prepared)
	if b.idle {
		// The batch's time includes the transport both ways, during which the replica was idle.
		r.overhead.alone.observe(took, b.typical)
		r.profile.learn(rows, max(took-b.lead, took/2), now)
	} else {
		r.overhead.behind.observe(took, b.typical)
		r.profile.learn(rows, took, now)
	}
	if b.bestTime > 0 {
		r.trials.decide(took, b.Rows, b.bestTime, r.profile.spread.stall, now > b.medianDeadline)
	}
	if b.divides {
		r.trials.divided += float64(took)
	}
	r.trials.work(r.sharing.part(took), r.profile.contradictions)
	r.strategy.learn(b.Rows, b.limit, took)
	r.batches++
	r.rows += uint64(b.Rows - b.padding)
	r.busied += took
}

// done removes an answered batch from those in flight or given up.
func (r *Replica) done(b *Batch, now int64) {
	r.free = now
	if i := slices.Index(r.inflight, b); i >= 0 {
		r.inflight = slices.Delete(r.inflight, i, i+1)
	} else {
		// Batches sent since, while the replica looked dead, were queued behind this one.
		if r.blockedLanes() >= r.concurrency {
			for _, behind := range r.inflight {
				if behind.began != notStarted {
					behind.began = now
				}
			}
		}
		r.overdue = slices.DeleteFunc(r.overdue, func(g *Batch) bool { return g == b })
	}
	r.begin(now)
}

// overhead estimates the time of a batch on its way to the container and back, without its
// execution. A single batch does not show it. But a batch that was queued in the container behind
// another shows its execution only, from answer to answer, while a batch to an idle replica shows
// execution and overhead; the difference is the overhead.
//
// Both kinds are compared with the current profile, which is learned from both; its errors cancel
// out in the difference. The noise of executions is often ten times the overhead, so only the lower
// bound of the difference counts: its mean less two standard errors.
type overhead struct {
	alone, behind residuals // of batches to an idle replica, and of batches behind another
}

// residuals are the differences between the times of batches and their typical times, in ns,
// exponentially weighted.
type residuals struct {
	weight, mean, square float64
}

const (
	minOverhead = int64(100 * time.Microsecond)
	maxOverhead = int64(5 * time.Millisecond)
	// Of this many full batches, one is sent behind another to measure the overhead.
	probeOverhead  = 32
	residualForget = 1 - 1.0/256
	minResiduals   = 8
)

func (e *residuals) observe(took, typical int64) {
	if typical == 0 {
		return
	}
	// A residual above the typical time, or above the largest overhead, has another cause.
	x := float64(min(took-typical, typical+maxOverhead))
	e.weight = e.weight*residualForget + 1
	d := x - e.mean
	e.mean += d / e.weight
	e.square = e.square*residualForget + d*(x-e.mean)
}

// variance is the variance of the mean.
func (e *residuals) variance() float64 { return e.square / (e.weight * e.weight) }

// value is the overhead, at most a quarter of the shortest execution.
func (o *overhead) value(shortest float64) int64 {
	sure := 0.0
	if o.alone.weight >= minResiduals && o.behind.weight >= minResiduals {
		sure = o.alone.mean - o.behind.mean - 2*math.Sqrt(o.alone.variance()+o.behind.variance())
	}
	return min(max(int64(sure), minOverhead), maxOverhead, int64(shortest/4))
}
