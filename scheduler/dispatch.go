package scheduler

import (
	"slices"
	"time"
)

// tryBuckets is how many shapes are searched for a batch, in order of their first rows. Usually the
// first shape has one; the bound is for replicas that are too slow for most waiting rows.
const tryBuckets = 8

// dispatch gives waiting rows to replicas that can take them, and offers the remaining rows to
// containers that other servers share.
func (c *core) dispatch(now int64, fx *effects) {
	c.distribute(now, fx)
	c.offer(now, fx)
}

// distribute gives waiting rows to replicas that can take them, until it runs out of either. It is
// work-conserving: an idle replica takes waiting rows, unless it fails on every batch, or rows that
// are about to come make up for the wait (gathering).
func (c *core) distribute(now int64, fx *effects) {
	c.supersedeReturned(fx)
	c.dropRetries(now)
	if c.rows == 0 {
		c.gathered(now)
		return
	}
	if c.wake <= now { // the timer may be late: a row whose deadline has passed must not be sent
		c.expireWaiting(now, fx)
	}
	c.probe(now, fx)
	c.round++
	for c.rows > 0 {
		rep, start := c.next(now)
		if rep == nil {
			return
		}
		if !c.feed(rep, start, now, fx) {
			rep.round = c.round
		}
	}
}

// next is the replica that is predicted to finish a batch first, among those that may have one now
// and have not declined in this round. For replicas whose next batch is held back it sets the
// wake-up.
func (c *core) next(now int64) (best *Replica, bestStart int64) {
	bestEnd := int64(never)
	for _, rep := range c.replicas {
		if rep.round == c.round {
			continue
		}
		n := c.atOnce(rep)
		at, start := rep.ready(n, now)
		if at > now && at < never && c.complete(rep, at-now) && !c.otherFree(rep, now) {
			c.wakeAt(at) // if it declines now
			at = now
		}
		if at <= now && !rep.sound() && slices.ContainsFunc(c.replicas, (*Replica).sound) {
			at = max(now, rep.heldOff())
		}
		if at > now {
			c.wakeAt(at)
			continue
		}
		if end := start + int64(rep.profile.typical(n)); end < bestEnd {
			best, bestStart, bestEnd = rep, start, end
		}
	}
	return best, bestStart
}

// atOnce is how many of the waiting rows a replica's next batch is expected to have at most.
func (c *core) atOnce(rep *Replica) int {
	return min(rep.sharing.whole(c.rows), rep.profile.explored())
}

// feed sends one batch to a replica. It returns false if there is nothing for the replica now.
func (c *core) feed(rep *Replica, start, now int64, fx *effects) bool {
	// Retries are the oldest rows and go first, but must not starve the other rows.
	if rep.retries < retriesAtOnce || c.trying == c.rows {
		if c.feedRetry(rep, start, now, fx) {
			rep.retries++
			return true
		}
	}
	rep.retries = 0
	if c.makesRoom(rep, now) {
		return false
	}
	delayed := false
	for _, b := range c.buckets.ordered[:min(tryBuckets, len(c.buckets.ordered))] {
		for priority := range b.queues {
			q := &b.queues[priority]
			if q.items == 0 {
				continue
			}
			p := rep.plan(c, start, b.rowBytes)
			w, ok := rep.strategy.pick(q, p)
			if !ok {
				continue
			}
			if c.streams.turning > 0 {
				if it, places := c.goesFirst(rep, q, &w, priority, start); it != nil {
					return c.feedFrame(rep, it, places, start, now, fx)
				}
				p = rep.plan(c, start, b.rowBytes)
			}
			if c.waits(rep, &w, p) {
				return false
			}
			if until := c.delayed(q, &w, p, rep.free, now); until > now {
				c.wakeAt(until)
				delayed = true
				break
			}
			if c.gathers() {
				c.group(rep, q, &w, p)
				if until := c.gather(rep, q, &w, p, now, fx); until > now {
					c.wakeAt(until)
					return false
				}
				c.balance(q, &w, p)
			}
			c.cut(rep, choice{b, priority, w}, p, now, fx)
			return true
		}
	}
	if delayed {
		return false
	}
	if c.streams.turning > 0 {
		if it, places := c.goesFirst(rep, nil, nil, priorities, start); it != nil {
			return c.feedFrame(rep, it, places, start, now, fx)
		}
	}
	if until := c.gatherLate(rep, start, now, fx); until > now {
		c.wakeAt(until)
		return false
	}
	return c.chance(rep, start, now, fx)
}

// feedFrame sends a batch in which a frame goes first, unless it is held back.
func (c *core) feedFrame(rep *Replica, it *item, places int, start, now int64, fx *effects) bool {
	p, w := c.windowOf(rep, it, places, start)
	q := it.queue
	until := c.delayed(q, &w, p, rep.free, now)
	if until > now {
		c.wakeAt(until)
	}
	waits := c.waits(rep, &w, p)
	if until == now && c.gathers() && !waits {
		if until = c.gather(rep, q, &w, p, now, fx); until > now {
			c.wakeAt(until)
		}
	}
	if until > now || waits {
		c.streams.first = c.streams.first[:0]
		return false
	}
	c.cut(rep, choice{it.bucket, it.req.Priority, w}, p, now, fx)
	return true
}

// delayed returns until when to wait for more rows, by the configured delay, which counts from when
// both the rows and the replica were there. A batch of the largest size does not wait.
func (c *core) delayed(q *queue, w *window, p *plan, free, now int64) int64 {
	if c.cfg.Delay == 0 || w.rows >= w.room || p.granted {
		return now
	}
	latest := q.item(w.at).deadline - p.planned(w.room) - (p.start - now)
	// Rows are in order of their deadlines, so any of them may have waited longest.
	since := now
	for at, rows := w.at, 0; rows < w.rows && !q.end(at); at = q.next(at) {
		it := q.item(at)
		since = min(since, it.since)
		rows += it.rows()
	}
	return min(max(since, free)+int64(c.cfg.Delay), latest)
}

// A choice is the rows that a replica is sent next: a window of a queue.
type choice struct {
	bucket   *bucket
	priority int
	window
}

// cut makes a batch from a window and sends it.
func (c *core) cut(rep *Replica, from choice, p *plan, now int64, fx *effects) {
	bk, priority, w := from.bucket, from.priority, from.window
	b := newBatch(c.model, rep)
	c.streams.cuts++
	stopped := c.fill(b, &bk.queues[priority], w.at, goal{w.rows, w.cap}, p, now)
	// Rows of lower priorities fill the room that is left, if they are in time and do not delay the
	// window.
	for lower := priority + 1; !stopped && b.Rows < w.room && lower < priorities; lower++ {
		if q := &bk.queues[lower]; q.items > 0 {
			at := q.start()
			if p.shed {
				at = q.seek(at, p.start+p.planned(w.room))
			}
			stopped = c.fill(b, q, at, goal{w.room, w.cap}, p, now)
		}
	}
	c.buckets.reorder(bk)
	why := w.why
	switch {
	case b.crowded:
		why = CloseBytes
	case b.leftOut && b.Rows < w.rows:
		why = CloseStream
	case w.bestTime > 0: // a trial
	case (c.gathering.replica == rep || rep.sharing.gathered) && c.rows == 0 && b.Rows < p.max:
		why = CloseTogether
	case c.rows == 0 && c.cfg.Delay > 0 && b.Rows < p.max:
		why = CloseDelay
	case c.rows == 0 && b.Rows < p.max:
		why = CloseIdle
	case bk.rows == 0 && c.rows == c.trying && b.Rows < w.room:
		why = CloseIdle // the remaining rows wait for a batch of their own
	case bk.rows == 0 && b.Rows < w.room:
		why = CloseShape
	case b.Rows >= w.room, stopped && b.Rows >= w.rows, stopped && w.rows == w.room:
		// It is full, or the next request does not fit and may not be split.
	default:
		why = w.left
	}
	b.reason = why
	b.limit, b.bestTime, b.medianDeadline = w.room, w.bestTime, w.medianDeadline
	b.divides = w.divides
	if c.cfg.Pad && c.batched {
		c.pad(b, rep.max)
	}
	c.send(rep, b, p.start, now, fx)
	if *c.cfg.Shed {
		c.shedHopeless(&bk.queues[priority], now, fx)
	}
}

// A goal is how far a batch is filled.
type goal struct {
	rows  int // that it shall have
	whole int // requests of at most so many rows are not split
}

// fill moves rows of q, starting at the cursor, into the batch until it reaches the goal. stopped
// reports that fill ended early, at a request that does not fit.
func (c *core) fill(b *Batch, q *queue, at cursor, until goal, p *plan, now int64) (stopped bool) {
	if c.streams.turning > 0 {
		return c.fillInTurn(b, q, at, until, p.start+p.planned(until.rows), now)
	}
	target, whole := until.rows, until.whole
	first := at.block
	for !stopped && b.Rows < target && !q.end(at) {
		blk := q.blocks[at.block]
		from, to := at.at, at.at
		var rest *item // the item of which only the first rows are taken
		for ; to < blk.hi && b.Rows < target; to++ {
			it := blk.items[to]
			n := it.rows()
			if b.Rows > 0 && b.bytes+it.load() > c.cfg.BatchBytes {
				b.crowded, stopped = true, true
				break
			}
			if n > target-b.Rows {
				if n > whole {
					rest = it
				} else {
					stopped = true
				}
				break
			}
			b.oldest = max(b.oldest, now-it.since)
			b.add(span{req: it.req, lo: it.lo, hi: it.hi, record: it.record})
			c.uncount(it)
		}
		stop := to < blk.hi
		last := from > blk.lo || stop
		if to > from {
			q.removeRange(at.block, from, to)
		}
		if rest != nil {
			c.part(b, q, rest, target-b.Rows, now)
		}
		if stop {
			break
		}
		if last { // the block remains, with the items before the window
			at.block++
		}
		if at.block < len(q.blocks) {
			at.at = q.blocks[at.block].lo
		}
	}
	q.tidy(min(first, len(q.blocks)-1))
	return stopped
}

// part moves the first n rows of an item, which has more, into the batch.
func (c *core) part(b *Batch, q *queue, it *item, n int, now int64) {
	part := *it
	part.hi = part.lo + n
	b.oldest = max(b.oldest, now-it.since)
	b.add(span{req: it.req, lo: part.lo, hi: part.hi, record: it.record})
	c.rows -= n
	c.bytes -= part.bytes()
	it.bucket.rows -= n
	c.sources.change(it.req.source, -n, -part.bytes())
	q.shrink(it, n)
}

// pad repeats the last row up to rows.
func (c *core) pad(b *Batch, rows int) {
	s := b.spans[len(b.spans)-1]
	for b.Rows < rows {
		b.pad(s.req, s.hi-1, s.hi)
	}
}

// alone moves the first n rows of a waiting request into a batch of its own.
func (c *core) alone(b *Batch, it *item, n int, now int64) {
	b.oldest = now - it.since
	since := it.since
	c.dequeue(it)
	b.add(span{req: it.req, lo: it.lo, hi: it.lo + n, record: it.record})
	if it.lo += n; it.lo < it.hi {
		// Look the bucket up again: it is forgotten when the last of its rows leaves.
		it.bucket = c.buckets.get(it.req)
		c.enqueue(it, now)
		it.since = since
	}
	if c.cfg.Pad && c.batched {
		c.pad(b, b.replica.max)
	}
}

// chancePause is the time between two rows that a replica gets although it is believed to be too
// slow for them and other replicas could serve them.
const chancePause = int64(time.Second)

// chance sends the last waiting row to an idle replica although it is predicted to be late: the
// prediction is an upper quantile, the replica has nothing better to do, and only measurements
// correct a wrong profile. If another replica is predicted to be in time it gets the row, unless
// this one has had no batch for chancePause: while the other replicas keep up there is always such
// a one, so a wrong prediction that this replica is too slow would last forever.
func (c *core) chance(rep *Replica, start, now int64, fx *effects) bool {
	if len(c.buckets.ordered) == 0 || rep.busy() {
		return false
	}
	bk := c.buckets.ordered[0]
	_, q := bk.top()
	it := c.chanceInTurn(q.tail())
	p := rep.plan(c, start, it.bucket.rowBytes)
	n := min(it.rows(), max(1, rep.strategy.limit(p)))
	if now < rep.free+chancePause && c.otherInTime(rep, n, it.req.deadline, now) {
		return false
	}
	if it.req.Frame != nil {
		c.streams.share = 0
	}
	b := newBatch(c.model, rep)
	c.alone(b, it, n, now)
	b.reason = CloseDeadline
	b.limit = b.Rows
	c.send(rep, b, start, now, fx)
	return true
}

// otherInTime reports whether a replica other than rep is predicted to answer n rows by the
// deadline. The other one begins when it would by its own prediction, with the preparation of all
// waiting rows: otherwise each of two idle replicas leaves the rows to the other one.
func (c *core) otherInTime(rep *Replica, n int, deadline, now int64) bool {
	for _, other := range c.replicas {
		if other == rep || other.state != replicaLive || !other.profile.known() {
			continue
		}
		if begin := other.begins(c.atOnce(other), now); begin < never && begin+other.profile.planned(n) <= deadline {
			return true
		}
	}
	return false
}

// shedHopeless answers rows that, by its optimistic times, not even the fastest replica could serve
// in time.
func (c *core) shedHopeless(q *queue, now int64, fx *effects) {
	fastest := now + c.capacity.fastest
	for head := q.head(); head != nil && head.req.spans == nil && head.deadline < fastest; head = q.head() {
		if head.deadline < head.req.deadline {
			c.renew(head)
		} else {
			c.answer(head.req, OutcomeDeadlineNeverSent, errHopeless, fx)
		}
	}
}

// send commits a batch to a replica.
func (c *core) send(rep *Replica, b *Batch, start, now int64, fx *effects) {
	b.sent, b.began = now, notStarted
	if rep.sharing.granted {
		b.began = now
	}
	b.idle = !rep.busy()
	if c.gathering.replica == rep {
		c.gathered(now)
	}
	b.lead = 0
	if b.idle {
		b.lead = start - now
	}
	if prepare := rep.preparing.of(b.Rows); prepare > 0 {
		b.ready = now + prepare
		b.lead = min(b.lead, rep.overhead.value(rep.profile.typical(1)))
	}
	whole := rep.sharing.whole(b.Rows)
	b.typical = int64(rep.profile.typical(whole))
	b.predicted = rep.profile.planned(whole)
	b.Grant = rep.take(max(whole, rep.planned.best), c.rows, now)
	for i := range b.spans {
		if r := b.spans[i].req; r != nil && r.Frame != nil {
			c.streams.sent(r.Frame, now)
		}
	}
	b.attach(start + b.predicted)
	if b.tightest < start+b.predicted {
		b.markLate(start + b.predicted)
	}
	b.due = b.tightest
	rep.ceiling.sent(b.Rows)
	c.deadly.sent(b.Rows)
	rep.inflight = append(rep.inflight, b)
	rep.begin(now)
	c.stats.batches++
	c.stats.rows += uint64(b.Rows - b.padding)
	c.stats.closed[b.reason]++
	c.wakeAt(b.tightest)
	c.wakeAt(rep.timeout(c.cfg.ExecTimeout))
	fx.send = append(fx.send, b)
}
