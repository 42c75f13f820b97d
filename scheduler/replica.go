package scheduler

import (
	"cmp"
	"math"
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
	options  ReplicaOptions

	// Guarded by the model's mutex.

	state       replicaState
	concurrency int // batches that it executes at once
	slots       int // batches in flight: those, and others that wait for their turn in the container
	max         int // most rows per batch
	profile     profile
	strategy    strategy
	inflight    []*Batch // in the order they were sent
	given       []*Batch // given up and not answered, see suspect.go
	probeAt     int64    // when it may be probed, while it is suspect
	reported    bool     // as silent
	free        int64    // when its last answer came
	ends        []ending // scratch of next
	failures    int      // batches that it has failed on, one after the other
	failed      uint64   // batches that it has failed on, or not answered in time
	lastError   error    // of the last of those; nil: there was none
	lastFailed  int64    // when that was
	round       uint64   // the last round of dispatching in which it had its turn
	again       int      // how many of its last batches were retries
	ceiling     ceiling
	overhead    overhead
	trials      trials
	planned     plan // what bounds its next batch, see plan
	drained     []func()
	batches     uint64
	rows        uint64
}

// ReplicaOptions are optional.
type ReplicaOptions struct {
	Label string // for people: an address, a host
	// Concurrency is how many batches it executes at once; 0 means 1, more than 64 means 64. So
	// many are executing, each planned for by itself.
	Concurrency int
	// Slots is how many batches it wants in flight. 0: as many as ModelConfig.Slots says, and
	// if that does not say either, Concurrency and one more.
	Slots int
	// Serial: with neither of both saying how many, it gets the next batch only after its answer.
	Serial bool
	// Silent is called, with no lock held, when the replica has answered nothing for several
	// execution timeouts although it had batches to answer. It is to end what the replica is,
	// and then Remove it. Without it the replica stays suspect until it answers.
	Silent func(reason error)
	// Feedback is called, with no lock held, with what became known of the model's answers; see
	// [Model.Feedback]. It must not block. nil: the replica does not want it.
	Feedback func(*Feedback)
}

// Stats looks at the replica.
func (r *Replica) Stats() ReplicaStats {
	now := r.m.sched.now()
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.stats(&r.m.core, now)
}

type replicaState uint8

const (
	replicaLive     replicaState = iota
	replicaSuspect               // it did not answer in time, and gets only probes until it does
	replicaDraining              // it gets nothing more
	replicaGone
)

var replicaStates = [...]string{ReplicaLive, ReplicaSuspect, ReplicaDraining, "gone"}

func (s replicaState) String() string { return replicaStates[s] }

// bound sets what depends on the model's configuration.
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

// plan is what bounds the next batch, of rows of the given size (0: any). It is the replica's
// own and holds until the next call: strategies take it through an interface, and a new one
// each time would be garbage.
func (r *Replica) plan(c *core, start, rowBytes int64) *plan {
	p := &r.planned
	*p = plan{start: start, max: r.max, maxWhy: CloseFull, objective: int64(c.cfg.Objective), shed: *c.cfg.Shed, prof: &r.profile, trials: &r.trials}
	if most := c.sizeThatWorks(r, start); most < p.max {
		p.max, p.maxWhy = most, CloseFailures
	}
	if ceiling := r.ceiling.rows; ceiling > 0 && p.max > ceiling {
		p.ceiling = ceiling
	}
	if rowBytes > 0 {
		if n := c.cfg.BatchBytes / rowBytes; n < int64(p.max) {
			p.max, p.maxWhy = max(1, int(n)), CloseBytes
		}
	}
	return p
}

// unbegun marks a batch that waits in the container until another one is answered.
const unbegun = int64(-1)

// executing counts the batches in flight that the container has begun.
func (r *Replica) executing() (n int) {
	for _, b := range r.inflight {
		if b.began != unbegun {
			n++
		}
	}
	return n
}

// busy reports whether the container executes as many batches as it can.
func (r *Replica) busy() bool { return r.executing() >= r.lanes() }

// begin notes which batches the container starts on, in the order in which they were sent. It
// is called whenever a batch is sent or answered.
func (r *Replica) begin(now int64) {
	for _, b := range r.given { // they were sent before all that are in flight
		if b.began == unbegun && r.held() < r.concurrency {
			b.began = now
		}
	}
	n := r.executing()
	for _, b := range r.inflight {
		if n >= r.lanes() {
			return
		}
		if b.began == unbegun {
			b.began = now
			n++
		}
	}
}

// took is how long the container has had for a batch in flight, by itself. One that is answered
// out of its turn cannot have been begun before the last answer, unless it was sent later.
func (r *Replica) took(b *Batch, now int64) int64 {
	if b.began == unbegun {
		return now - max(b.sent, r.free)
	}
	return now - b.began
}

// An ending is when a batch is predicted to be answered, and how much later than that it may
// well be.
type ending struct{ at, slack int64 }

// next is the ending after which a busy replica is predicted to start on another batch; at is
// never if nothing is known. It follows from when each batch was begun, so every answer
// corrects it. Afterwards r.ends has the endings of all that it can do at once by then.
func (r *Replica) next() ending {
	r.ends = r.ends[:0]
	for _, b := range r.inflight {
		if b.typical == 0 {
			return ending{at: never}
		}
		if b.began != unbegun {
			r.ends = append(r.ends, ending{b.began + b.lead + b.typical, b.predicted - b.typical})
		}
	}
	for _, b := range r.inflight {
		if b.began == unbegun { // begun after the earliest of the others
			first := slices.MinFunc(r.ends, ending.compare)
			r.ends[slices.Index(r.ends, first)] = ending{first.at + b.typical, b.predicted - b.typical}
		}
	}
	return slices.MinFunc(r.ends, ending.compare)
}

func (e ending) compare(o ending) int { return cmp.Compare(e.at, o.at) }

// begins is when the replica could start on a batch that is sent now; never if nothing is known.
func (r *Replica) begins(now int64) int64 {
	if !r.busy() {
		return now
	}
	return max(r.next().at, now)
}

// fastBatch is the execution time below which the next batch goes at once behind the one in
// flight, in ns: no timer is that precise.
const fastBatch = 200_000

// ready is when the replica may be sent another batch, and when it could start on it. Never:
// not before it answers. One that is not busy may at once. The next batch for a busy one is
// held back, so that it is not made while more rows could join: until twice the overhead of
// dispatching before the predicted end of the ones in flight, so that the container does not
// wait for it; but only if that end is known better than what is to be gained. Otherwise the
// batch would be planned with the uncertainty of two executions, which costs more rows than the
// container's pause. See also waits.
func (r *Replica) ready(now int64) (at, start int64) {
	if r.state != replicaLive || r.room() <= 0 {
		return never, never
	}
	over := r.overhead.value(r.profile.typical(1))
	if !r.busy() {
		return now, now + over
	}
	end := r.next()
	if end.at == never {
		return never, never
	}
	if r.fast() {
		return now, max(end.at, now+over)
	}
	if end.slack > 2*over && r.batches%probeOverhead != 0 {
		return never, never
	}
	return max(now, end.at-2*over), max(end.at, now+over)
}

// A replica that has failed on so many batches one after the other is given one only now and
// then, while others do better. What fails at once would otherwise look like the fastest of
// all, and get nearly every request.
const (
	toleratedFailures = 3
	firstHoldOff      = int64(100 * time.Millisecond) // after the last tolerated failure; doubled with each further one
	maxHoldOff        = int64(5 * time.Second)
)

// sound reports whether the replica takes batches and does not fail on all of them.
func (r *Replica) sound() bool { return r.state == replicaLive && r.failures < toleratedFailures }

// heldOff is until when a replica that is not sound gets nothing if another one is.
func (r *Replica) heldOff() int64 {
	const most = 6 // doublings, which is above maxHoldOff
	return r.free + min(firstHoldOff<<min(r.failures-toleratedFailures, most), maxHoldOff)
}

// judge counts how a batch ended. It is not the replica's fault if there was no memory for the
// answer, or the input was wrong.
func (r *Replica) judge(err error) {
	switch {
	case err == nil:
		r.failures = 0
	case outcomeOfFailure(err) == OutcomeContainerFailed:
		r.failures++
	}
}

// blame notes what the replica did wrong last.
func (r *Replica) blame(err error, now int64) {
	r.failed++
	r.lastError, r.lastFailed = err, now
}

// condition is the state in words, for people.
func (r *Replica) condition() string {
	if r.state == replicaLive && r.failures >= toleratedFailures {
		return ReplicaFailing
	}
	return r.state.String()
}

// waits reports whether a busy replica's next batch, of so many rows where there is room for
// more, should wait for the answer to the one in flight. Rows that join it gain a batch's time,
// and the others lose an overhead.
func (r *Replica) waits(rows, room int) bool {
	return r.busy() && rows < room && !r.fast()
}

// fast reports whether the batches in flight are so short that holding the next one back is
// pointless.
func (r *Replica) fast() bool { return r.inflight[len(r.inflight)-1].typical < fastBatch }

// timeout is when the first of the batches that the container executes has taken too long;
// never if there is none. Those that wait in the container have not begun to take time, and
// answers to others do not excuse one.
func (r *Replica) timeout(limit time.Duration) int64 {
	at := int64(never)
	for _, b := range r.inflight {
		if b.began != unbegun {
			at = min(at, b.overdue(int64(limit)))
		}
	}
	return at
}

// learn takes the execution time of an answered batch in.
func (r *Replica) learn(b *Batch, now int64) {
	took := r.took(b, now)
	if b.idle {
		// It was under way there and back while the replica had nothing to do.
		r.overhead.alone.observe(took, b.typical)
		r.profile.learn(b.Rows, max(took-b.lead, took/2), now)
	} else {
		r.overhead.behind.observe(took, b.typical)
		r.profile.learn(b.Rows, took, now)
	}
	if b.par > 0 {
		r.trials.settle(took, b.Rows, b.par, r.profile.spread.stall, now > b.half)
	}
	r.trials.work(took, r.profile.upsets)
	r.strategy.learn(b.Rows, b.limit, took)
	r.batches++
	r.rows += uint64(b.Rows - b.padding)
}

// done takes an answered batch out of those in flight, or given up.
func (r *Replica) done(b *Batch, now int64) {
	r.free = now
	if i := slices.Index(r.inflight, b); i >= 0 {
		r.inflight = slices.Delete(r.inflight, i, i+1)
	} else {
		if r.held() >= r.concurrency { // what was sent since, to a replica that looked dead, waited behind it
			for _, behind := range r.inflight {
				if behind.began != unbegun {
					behind.began = now
				}
			}
		}
		r.given = slices.DeleteFunc(r.given, func(g *Batch) bool { return g == b })
	}
	r.begin(now)
}

// overhead is how long a batch is under way, to the container and back, apart from its
// execution. It cannot be seen in a batch alone. But a batch that waited in the container for
// the one before it shows execution only, from answer to answer, while a batch to an idle
// replica shows both; the difference is the overhead.
//
// Both kinds are compared with the profile as it is at the time, and that is made of both; what
// is wrong with it cancels out in the difference. As the noise of executions is often ten times
// the overhead, only what the difference is for certain counts: its mean, less two standard
// errors.
type overhead struct {
	alone, behind residuals // of batches to an idle replica, and of those behind another
}

// residuals are how much longer batches took than is typical, with forgetting, in ns.
type residuals struct {
	weight, mean, square float64
}

const (
	minOverhead    = int64(100 * time.Microsecond)
	maxOverhead    = int64(5 * time.Millisecond)
	probeOverhead  = 32 // every so many batches, one goes behind another to have the overhead measured
	residualForget = 1 - 1.0/256
	minResiduals   = 8
)

func (e *residuals) observe(took, typical int64) {
	if typical == 0 {
		return
	}
	// Nothing that is more than twice as long, or the largest overhead longer, is a matter of
	// overheads.
	x := float64(min(took-typical, typical+maxOverhead))
	e.weight = e.weight*residualForget + 1
	d := x - e.mean
	e.mean += d / e.weight
	e.square = e.square*residualForget + d*(x-e.mean)
}

// variance is that of the mean.
func (e *residuals) variance() float64 { return e.square / (e.weight * e.weight) }

// value is the overhead, within reason: never more than a quarter of the shortest execution.
func (o *overhead) value(shortest float64) int64 {
	sure := 0.0
	if o.alone.weight >= minResiduals && o.behind.weight >= minResiduals {
		sure = o.alone.mean - o.behind.mean - 2*math.Sqrt(o.alone.variance()+o.behind.variance())
	}
	return min(max(int64(sure), minOverhead), maxOverhead, int64(shortest/4))
}
