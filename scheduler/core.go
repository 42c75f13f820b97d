package scheduler

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/shivad/shivad/shiva/plural"
)

// never is later than any time.
const never = math.MaxInt64

// core schedules one model. It has no clock, no lock and no goroutine, and calls no other code.
// Events are method calls with the time in nanoseconds; they return, as effects, the actions that
// the shell must take. Between two calls the core is consistent: every accepted request is waiting,
// executing or both, and the queue holds only rows that no replica can take now, or that are
// waiting out the configured delay.
type core struct {
	model     *Model // for batches, whose answers return to it; the core does not use it
	batched   bool
	noReplica error
	cfg       ModelConfig // effective
	seq       uint64

	// Waiting rows.

	buckets  buckets
	retries  []*retry // rows of failed batches, in the order in which they are sent
	sources  sources
	streams  streams
	rows     int // in the queue and in retries
	bytes    int64
	trying   int // rows that are in retries, a part of rows
	requests int // unanswered, waiting or executing

	// Waits for callers.

	gathering gathering
	allowance int64 // ns that waits in vain may take
	restarts  int64 // ns that rows which start over may be worth
	lastWait  Wait

	// Replicas.

	replicas    []*Replica
	live        int    // live replicas
	awaited     string // what is being started while no replica is live; "": nothing
	returns     int64  // until when a successor of a lost replica is expected
	lastRemoved int64  // when the last replica was removed
	incarnation uint64 // how often a replica registered while none was live
	round       uint64 // of dispatch, see Replica.round
	capacity    capacity
	surplus     surplus
	victims     []victim // scratch of displace
	bad         badRows
	failing     int // consecutive failed batches, over all replicas
	deadly      deadly
	culprits    []Culprit

	wake     int64 // when tick must be called
	draining bool
	closed   bool
	stats    counters
	past     past
	demand   demand
}

// effects are the actions that an event requires, carried out without the lock (Model.run).
type effects struct {
	send      []*Batch
	answered  []*Request // Err is set
	lost      []lostBatch
	removed   []*Batch // of removed replicas, whose workers are done with them
	drained   []func()
	offers    []replicaOffer
	silent    []*Replica   // suspect for silentTimeouts execution timeouts
	convicted []conviction // of requests that are in answered, too
	wasted    int          // rows that were executed after their request had been answered
	changed   bool         // the number of live replicas has changed
}

// lostBatch is a batch without an answer, since its replica is lost or suspect.
type lostBatch struct {
	rows            int
	exec, predicted int64
	err             error
}

func newCore(id ModelID, spec Spec, cfg ModelConfig) core {
	c := core{
		batched: spec.Batched(), wake: never,
		noReplica: fmt.Errorf("%w of %s; one of its containers must connect or recover", ErrUnavailable, id),
	}
	c.buckets.one = spec.MixedRows || !c.batched
	c.configure(cfg)
	return c
}

// configure applies an effective configuration.
func (c *core) configure(cfg ModelConfig) {
	changed := cfg.Strategy != c.cfg.Strategy
	c.cfg = cfg
	c.sources.bound(cfg.QueueRows, cfg.QueueBytes)
	for _, rep := range c.replicas {
		rep.bound(c)
		if changed {
			rep.strategy = newStrategy(cfg.Strategy)
		}
	}
	c.measure()
}

// maxBatch is the largest batch for a container that declares the given maximum (0: none).
func (c *core) maxBatch(declared int) int {
	switch {
	case !c.batched:
		return 1
	case declared > 0 && c.cfg.MaxBatch > 0:
		return min(declared, c.cfg.MaxBatch)
	case declared > 0 || c.cfg.MaxBatch > 0:
		return max(declared, c.cfg.MaxBatch)
	}
	return min(defaultMaxBatch, c.cfg.QueueRows)
}

// wakeAt asks for a tick.
func (c *core) wakeAt(t int64) { c.wake = min(c.wake, t) }

// submit accepts or refuses a request.
func (c *core) submit(r *Request, now int64, fx *effects) {
	r.submitted = now
	newest := r.Frame != nil && c.keepOf(r.Frame) > 0
	c.stats.arrive(r, now)
	if !newest {
		c.stats.want(r.Rows)
	}
	if c.draining {
		c.refuse(r, OutcomeDraining, errDraining, fx)
		return
	}
	if !c.batched && r.Rows != 1 {
		c.refuse(r, OutcomeInvalidInput,
			fmt.Errorf("%w: the model takes one row per request, got %d", ErrInvalidInput, r.Rows), fx)
		return
	}
	if r.Rows > c.cfg.QueueRows || r.bytes > c.cfg.QueueBytes {
		c.refuse(r, OutcomeTooLarge, fmt.Errorf("%w: %s and %d bytes, but queue_rows is %d and queue_bytes %d",
			ErrTooLarge, plural.Of(r.Rows, "row"), r.bytes, c.cfg.QueueRows, c.cfg.QueueBytes), fx)
		return
	}
	if !c.hopeful(now) {
		c.refuse(r, OutcomeUnavailable, c.noReplica, fx)
		return
	}
	if r.deadline <= now {
		c.refuse(r, OutcomeDeadlineNeverSent, errPastDeadline, fx)
		return
	}
	r.source = c.sources.get(r.Source)
	var s *stream
	if r.Frame != nil {
		if s = c.streams.get(r, c.cfg.Streams, now); s == nil {
			c.refuse(r, OutcomeStreams, &OverloadedError{Limit: limitStreams, Value: int64(c.cfg.Streams),
				Needed: int64(c.cfg.Streams) + 1, RetryAfter: minRetry}, fx)
			return
		}
		defer c.streams.fallSilent(s)
		if newest && s.due(c.cfg.StreamInterval, now) {
			c.stats.want(r.Rows)
			c.stats.promised += uint64(r.Rows)
		}
	}
	if !c.admit(r, s, now, fx) {
		return
	}
	b := c.buckets.get(r)
	if b == nil {
		c.refuse(r, OutcomeQueueShapes,
			&OverloadedError{Limit: limitShapes, Value: queueShapes, Needed: queueShapes + 1, RetryAfter: minRetry}, fx)
		return
	}
	if r.source.caller && !newest {
		c.stats.leaveOut(r.Rows)
	}
	b.rowBytes = r.bytes / int64(r.Rows)
	r.state = stateWaiting
	r.left = int32(r.Rows)
	r.sent = unsent
	r.late = false
	r.Timing = Timing{}
	c.requests++
	c.sources.asked(r.source, r.Rows)
	c.stats.submitted++
	c.stats.peak = max(c.stats.peak, c.requests)
	c.past.raise(c.requests)
	r.item = item{req: r, hi: r.Rows, bucket: b}
	if s != nil {
		if at := c.joinStream(r, s, now, fx); at != nil {
			c.enqueueAt(&r.item, *at)
			return
		}
	}
	c.enqueue(&r.item, now)
}

// enqueue adds an item to its queue, at its own place. Its request, rows and bucket are set.
func (c *core) enqueue(it *item, since int64) {
	c.seq++
	c.enqueueAt(it, place{deadline: it.req.deadline, seq: c.seq, since: since})
}

func (c *core) enqueueAt(it *item, at place) {
	r := it.req
	it.place = at
	c.rows += it.rows()
	c.bytes += it.bytes()
	c.sources.add(it)
	it.inTurn = false
	if f := r.Frame; f != nil {
		c.streams.count(f.stream, 1)
		it.inTurn = f.stream.Keep > 0
	}
	it.bucket.rows += it.rows()
	it.bucket.queues[r.Priority].insert(it)
	c.buckets.reorder(it.bucket)
	c.wakeAt(it.deadline)
}

// dequeue removes an item from its queue and from all counts.
func (c *core) dequeue(it *item) {
	it.queue.remove(it)
	c.uncount(it)
	c.buckets.reorder(it.bucket)
}

// uncount subtracts an item that leaves its queue from all counts.
func (c *core) uncount(it *item) {
	c.rows -= it.rows()
	c.bytes -= it.bytes()
	it.bucket.rows -= it.rows()
	c.sources.remove(it)
	if f := it.req.Frame; f != nil {
		c.streams.count(f.stream, -1)
	}
}

// requeue returns rows of a batch that was given up to the queue.
func (c *core) requeue(s span, now int64) {
	c.stats.retried++
	r := s.req
	b := c.buckets.get(r)
	if b == nil { // too many shapes wait: the rows become a retry
		c.addRetry(&failure{failed: true}, []span{s}, nil, now)
		return
	}
	it := &r.item
	if it.queue != nil {
		it = &item{sibling: r.extra}
		r.extra = it
	}
	*it = item{req: r, lo: s.lo, hi: s.hi, sibling: it.sibling, record: s.record, bucket: b}
	c.enqueue(it, now)
}

// refuse answers a request that was not accepted.
func (c *core) refuse(r *Request, o Outcome, err error, fx *effects) {
	r.state = stateIdle
	r.outcome, r.Err = o, err
	c.stats.outcomes[o]++
	fx.answered = append(fx.answered, r)
}

// answer ends an accepted request without a result, wherever its rows are. Rows that are
// executing continue without it.
func (c *core) answer(r *Request, o Outcome, err error, fx *effects) {
	if r.Frame != nil {
		c.streams.removeFrame(r.Frame)
	}
	if r.item.queue != nil {
		c.dequeue(&r.item)
	}
	for it := r.extra; it != nil; it = it.sibling {
		if it.queue != nil {
			c.dequeue(it)
		}
	}
	r.extra = nil
	for s := r.spans; s != nil; {
		next := s.next
		if s.retry != nil {
			s.retry.failure.untried += s.hi - s.lo
			c.leaveRetry(s)
		}
		s.req, s.next = nil, nil
		s = next
	}
	r.spans = nil
	c.requests--
	c.refuse(r, o, err, fx)
	if o == OutcomeSuperseded {
		c.sources.left(r.source, r.Rows)
	} else {
		c.ended(r)
	}
	if r.Frame != nil {
		c.release(r.Frame.stream, fx)
	}
}

// cancel ends a request that its caller gave up. It returns false if the request is answered
// already.
func (c *core) cancel(r *Request, fx *effects) bool {
	if r.state != stateWaiting {
		return false
	}
	o := OutcomeCanceledQueued
	if r.executing() {
		o = OutcomeCanceledExecuting
	}
	r.registerLate()
	c.answer(r, o, errCanceled, fx)
	return true
}

// tick handles what is due: expiry, execution timeouts, batches that were held back. It sets wake
// to when it must be called next.
func (c *core) tick(now int64, fx *effects) {
	c.wake = never
	c.expireWaiting(now, fx)
	for _, rep := range c.replicas {
		for _, b := range rep.inflight {
			b.tightest = c.expireSpans(b.spans, b.tightest, now, fx)
		}
	}
	for _, rep := range c.replicas {
		c.expireReplica(rep, now, fx)
	}
	c.unavailable(now, fx)
	c.dispatch(now, fx)
	if c.returns > now {
		c.wakeAt(c.returns)
	}
	for _, b := range c.buckets.ordered {
		for i := range b.queues {
			if head := b.queues[i].head(); head != nil {
				c.wakeAt(head.deadline)
			}
		}
	}
	c.eachRetry(func(r *retry) { c.wakeAt(r.tightest) })
	if head := c.streams.held.head(); head != nil {
		c.wakeAt(head.deadline)
	}
	for _, rep := range c.replicas {
		for _, b := range rep.inflight {
			c.wakeAt(b.tightest)
		}
	}
}

// expireWaiting answers waiting requests whose deadlines have passed.
func (c *core) expireWaiting(now int64, fx *effects) {
	expire := func(q *queue) {
		for head := q.head(); head != nil && head.deadline <= now; head = q.head() {
			if head.deadline < head.req.deadline {
				c.renew(head)
			} else {
				c.expire(head.req, fx)
			}
		}
	}
	for i := 0; i < len(c.buckets.ordered); {
		b := c.buckets.ordered[i]
		for p := range b.queues {
			expire(&b.queues[p])
		}
		// Expiry moves a bucket back, or off the list, and another bucket takes its position.
		if i < len(c.buckets.ordered) && c.buckets.ordered[i] == b {
			i++
		}
	}
	expire(&c.streams.held)
	c.eachRetry(func(r *retry) { r.tightest = c.expireSpans(r.spans, r.tightest, now, fx) })
}

// expireSpans answers the requests of spans whose deadlines have passed. No deadline is before
// tightest. It returns the next deadline.
func (c *core) expireSpans(spans []span, tightest, now int64, fx *effects) int64 {
	if tightest > now {
		return tightest
	}
	tightest = never
	for i := range spans {
		r := spans[i].req
		if r == nil {
			continue
		}
		if r.deadline > now {
			tightest = min(tightest, r.deadline)
			continue
		}
		c.expire(r, fx)
	}
	return tightest
}

// expire ends a request at its deadline. The outcome names the stage at which the time was lost.
func (c *core) expire(r *Request, fx *effects) {
	r.registerLate()
	switch {
	case r.left == 0:
		c.answer(r, OutcomeDeadlineContainer, errHeld, fx)
	case r.sent == unsent && c.live == 0 && (c.awaited != "" || c.returns > 0):
		c.answer(r, OutcomeUnavailable, c.noStart(), fx)
	case r.sent == unsent:
		c.answer(r, OutcomeDeadlineNeverSent, errNeverSent, fx)
	case !r.executing():
		c.answer(r, OutcomeDeadlineContainer, errRetryLate, fx)
	case r.late:
		c.answer(r, OutcomeDeadlineSentLate, errSentLate, fx)
	default:
		c.answer(r, OutcomeDeadlineContainer, errContainerLate, fx)
	}
}

// answered handles the answer to a batch, or its failure if err is not nil. Requests whose last
// rows were in the batch are marked as answered and stay in its spans for delivery. It returns how
// long the batch executed, and what the shell must do with the answer.
func (c *core) answered(b *Batch, rowErrors []RowError, err error, now int64, fx *effects) (exec int64, v verdict) {
	if b.state == batchRemoved || b.state == batchDone {
		return 0, verdictIgnore
	}
	rep := b.replica
	exec = rep.execTime(b, now)
	if b.state == batchOrphan {
		// The answer is too late to be used, and its duration says nothing about the next batch.
		rep.done(b, now)
		b.state = batchDone
		c.revive(rep, fx)
		fx.wasted += b.Rows - b.padding
		c.finishDrain(rep, fx)
		c.dispatch(now, fx)
		return exec, verdictDrop
	}
	b.state = batchDone
	if err == nil {
		rep.learn(b, now)
		c.remeasure(rep)
		c.earn(rep, exec)
	}
	rep.done(b, now)
	c.revive(rep, fx)
	c.stats.batchesDone++
	if err != nil {
		rep.trials.failed(b, exec)
		c.stats.batchesFailed++
		c.failed(b, err, exec, now, fx)
	} else {
		c.passed(b, len(rowErrors) > 0, now)
		c.accept(b, rowErrors, exec, fx)
	}
	c.finishDrain(rep, fx)
	c.dispatch(now, fx)
	return exec, verdictDeliver
}

// accept marks the requests of an answered batch.
func (c *core) accept(b *Batch, rowErrors []RowError, exec int64, fx *effects) {
	for _, e := range rowErrors {
		row := e.Row
		for i := range b.spans {
			s := &b.spans[i]
			if n := s.hi - s.lo; row >= n {
				row -= n
				continue
			}
			switch {
			case s.err != nil:
			case s.req != nil && s.req.Rare != nil && s.req.Rare.Holes:
				s.req.Rare.fail(RowError{Row: s.lo + row, Message: e.Message, Invalid: e.Invalid})
			case e.Invalid:
				s.err = fmt.Errorf("%w: row %d: %s", ErrInvalidInput, s.lo+row, e.Message)
			default:
				s.err = fmt.Errorf("%w on row %d: %s", ErrContainerFailed, s.lo+row, e.Message)
			}
			break
		}
	}
	fx.wasted -= b.padding
	from := 0
	for i := range b.spans {
		s := &b.spans[i]
		at := from
		from += s.hi - s.lo
		r := s.req
		if r == nil {
			fx.wasted += s.hi - s.lo
			continue
		}
		if s.err != nil {
			c.answer(r, outcomeOfFailure(s.err), s.err, fx) // clears s.req
			continue
		}
		r.left -= int32(s.hi - s.lo)
		f := r.Frame
		early := r.left == 0 && f != nil && !f.stream.mayLeave(f, b)
		if r.left > 0 || r.pieces != nil || early {
			if err := b.take(s, at); err != nil {
				c.answer(r, OutcomeContainerFailed, err, fx)
				continue
			}
		}
		s.detach()
		if r.left > 0 {
			continue
		}
		r.extra = nil
		if early {
			r.Timing.Exec, r.Timing.BatchRows = time.Duration(exec), b.Rows
			c.holdBack(f, fx)
			continue
		}
		if f != nil {
			c.streams.leave(f, b)
		}
		s.req = r // to be delivered
		c.succeed(r)
	}
}

// succeed ends a request whose answer is complete.
func (c *core) succeed(r *Request) {
	r.outcome, r.Err = OutcomeOK, nil
	r.source.trusted = true
	c.requests--
	c.ended(r)
	c.stats.outcomes[OutcomeOK]++
}

// giveUp handles a batch that its replica will not answer: it is lost, or suspect. Its rows that
// are attached still return to the queue. A probe, whose replica hung before, is tried again once.
func (c *core) giveUp(b *Batch, why error, now int64, fx *effects) {
	for i := range b.spans {
		s := &b.spans[i]
		r := s.req
		if r == nil {
			continue
		}
		if s.record.probed || !*c.cfg.Retry || !c.hopeful(now) || r.deadline <= now {
			c.answer(r, OutcomeContainerLost, why, fx)
			continue
		}
		requeued := span{req: r, lo: s.lo, hi: s.hi, record: s.record}
		requeued.record.probed = b.probe > 0
		s.detach()
		c.streams.returned(r)
		c.requeue(requeued, now)
	}
	if r := b.retry; r != nil {
		r.failure.untried += b.Rows
		c.partTried(r, now)
	}
	b.replica.ceiling.ended(b.Rows, now)
	if b.state != batchRemoved {
		c.deadly.ended(b.Rows, now)
	}
	fx.lost = append(fx.lost, lostBatch{rows: b.Rows, exec: b.replica.execTime(b, now), predicted: b.predicted,
		err: why})
}

// remove removes a replica, and why is the error of the batches that it has.
func (c *core) remove(rep *Replica, why error, now int64, fx *effects) {
	if rep.state == replicaGone {
		return
	}
	if rep.state == replicaLive {
		c.need(now) // so that the worth of a replica stays known
		c.live--
	}
	if rep.state != replicaDraining && rep.options.Returns > 0 {
		c.returns = max(c.returns, now+int64(rep.options.Returns))
	}
	fx.changed = true
	rep.state = replicaGone
	c.lastRemoved = now
	c.replicas = slices.DeleteFunc(c.replicas, func(r *Replica) bool { return r == rep })
	if c.gathering.replica == rep {
		c.gathered(now)
	}
	c.measure()
	var lost []*Batch
	for _, b := range rep.inflight {
		b.state = batchRemoved
		if b.began == notStarted {
			c.deadly.ended(b.Rows, now)
		} else {
			c.deadly.died(b.Rows, now)
		}
		if b.began != notStarted && b.probe == 0 {
			lost = append(lost, b)
		}
	}
	c.lose(rep, lost, loss{alone: rep.blockedLanes() == 0, why: why}, now, fx)
	for _, b := range rep.inflight {
		c.giveUp(b, why, now, fx)
	}
	for _, b := range rep.overdue {
		b.state = batchRemoved
	}
	fx.removed = append(append(fx.removed, rep.inflight...), rep.overdue...)
	rep.inflight, rep.overdue = nil, nil
	c.finishDrain(rep, fx)
	c.unavailable(now, fx)
	if c.returns > now {
		c.wakeAt(c.returns)
	}
	c.dispatch(now, fx)
}

// add adds a replica and gives it work.
func (c *core) add(rep *Replica, now int64, fx *effects) {
	rep.free = now
	rep.profile = newProfile(0)
	rep.bound(c)
	c.replicas = append(c.replicas, rep)
	if c.live == 0 {
		c.incarnation++
	}
	c.returns = 0
	c.live++
	fx.changed = true
	c.measure()
	c.dispatch(now, fx)
}

// drain stops sending batches to a replica.
func (c *core) drain(rep *Replica, done func(), now int64, fx *effects) {
	rep.drained = append(rep.drained, done)
	switch rep.state {
	case replicaLive:
		c.live--
		fx.changed = true
		rep.state = replicaDraining
	case replicaSuspect:
		rep.state = replicaDraining
	}
	c.measure()
	c.finishDrain(rep, fx)
	c.unavailable(now, fx)
	c.dispatch(now, fx) // rows may have been waiting for this replica
}

// finishDrain schedules the calls of the functions passed to Drain once the replica's last batch is
// answered.
func (c *core) finishDrain(rep *Replica, fx *effects) {
	if len(rep.inflight) == 0 && rep.state != replicaLive && len(rep.drained) > 0 {
		fx.drained = append(fx.drained, rep.drained...)
		rep.drained = nil
	}
}

// unavailable answers all waiting requests if no replica is left.
func (c *core) unavailable(now int64, fx *effects) {
	if !c.hopeful(now) {
		c.answerWaiting(OutcomeUnavailable, c.noReplica, fx)
	}
}

func (c *core) answerWaiting(o Outcome, err error, fx *effects) {
	for len(c.buckets.ordered) > 0 {
		_, q := c.buckets.ordered[0].top()
		c.answer(q.head().req, o, err, fx)
	}
	c.eachRetry(func(r *retry) {
		for i := range r.spans {
			if s := &r.spans[i]; s.req != nil {
				c.answer(s.req, o, err, fx)
			}
		}
	})
}

// close answers all requests.
func (c *core) close(fx *effects) {
	c.draining, c.closed = true, true
	c.answerWaiting(OutcomeDraining, errDraining, fx)
	for _, rep := range c.replicas {
		for _, b := range rep.inflight {
			for i := range b.spans {
				if r := b.spans[i].req; r != nil {
					c.answer(r, OutcomeDraining, errDraining, fx)
				}
			}
		}
	}
	c.wake = never
}
