package scheduler

import (
	"slices"
	"time"
)

// tryBuckets is how many shapes are looked through for a batch, in order of their first rows.
// Usually the first has one; the bound is for replicas too slow for most of what waits.
const tryBuckets = 8

// dispatch gives waiting rows to replicas that can take them, until either runs out. It is
// work-conserving: an idle replica takes what is there, unless it fails on whatever it gets.
func (c *core) dispatch(now int64, fx *effects) {
	c.dropRetries(now)
	if c.rows == 0 {
		return
	}
	if c.wake <= now { // a deadline may have passed whose timer is late: its row must not be sent
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

// next is the replica, of those that may have a batch now and have not declined in this round,
// that is predicted to finish it first. For those that are held back it asks for a wake-up.
func (c *core) next(now int64) (best *Replica, bestStart int64) {
	bestEnd := int64(never)
	for _, rep := range c.replicas {
		if rep.round == c.round {
			continue
		}
		at, start := rep.ready(now)
		if at <= now && !rep.sound() && slices.ContainsFunc(c.replicas, (*Replica).sound) {
			at = max(now, rep.heldOff())
		}
		if at > now {
			c.wakeAt(at)
			continue
		}
		n := min(c.rows, rep.profile.explored())
		if end := start + int64(rep.profile.typical(n)); end < bestEnd {
			best, bestStart, bestEnd = rep, start, end
		}
	}
	return best, bestStart
}

// feed sends one batch to a replica. False: there is nothing for it now.
func (c *core) feed(rep *Replica, start, now int64, fx *effects) bool {
	// What is tried again is the oldest there is, and goes first; but it is no standstill for
	// others.
	if rep.again < retriesAtOnce || c.trying == c.rows {
		if c.feedRetry(rep, start, now, fx) {
			rep.again++
			return true
		}
	}
	rep.again = 0
	delayed := false
	for _, b := range c.buckets.ordered[:min(tryBuckets, len(c.buckets.ordered))] {
		p := rep.plan(c, start, b.rowBytes)
		for priority := range b.queues {
			q := &b.queues[priority]
			if q.items == 0 {
				continue
			}
			w, ok := rep.strategy.pick(q, p)
			if !ok {
				continue
			}
			if rep.waits(w.rows, w.room) {
				return false
			}
			if until := c.delayed(q, &w, p, now); until > now {
				c.wakeAt(until)
				delayed = true
				break
			}
			c.cut(rep, b, priority, w, p, now, fx)
			return true
		}
	}
	return !delayed && c.chance(rep, start, now, fx)
}

// delayed is until when to wait for more rows: never, if the batch is as large as it may be.
func (c *core) delayed(q *queue, w *window, p *plan, now int64) int64 {
	if c.cfg.Delay == 0 || w.rows >= w.room {
		return now
	}
	latest := q.item(w.at).deadline - p.prof.planned(w.room) - (p.start - now)
	// The rows stand in order of their deadlines: the one that has waited longest may be any of
	// them.
	since := now
	for at, rows := w.at, 0; rows < w.rows && !q.end(at); at = q.next(at) {
		it := q.item(at)
		since = min(since, it.since)
		rows += it.rows()
	}
	return min(since+int64(c.cfg.Delay), latest)
}

// cut makes a batch of a window and sends it.
func (c *core) cut(rep *Replica, bk *bucket, priority int, w window, p *plan, now int64, fx *effects) {
	b := newBatch(c.model, rep)
	stopped := c.fill(b, bk, &bk.queues[priority], w.at, w.rows, w.cap, now)
	// What room is left goes to lower priorities, as far as it costs the window nothing and
	// they are in time.
	for lower := priority + 1; !stopped && b.Rows < w.room && lower < priorities; lower++ {
		if q := &bk.queues[lower]; q.items > 0 {
			at := q.start()
			if p.shed {
				at = q.seek(at, p.start+p.prof.planned(w.room))
			}
			stopped = c.fill(b, bk, q, at, w.room, w.cap, now)
		}
	}
	c.buckets.place(bk)
	why := w.why
	switch {
	case b.crowded:
		why = CloseBytes
	case w.par > 0: // of a trial
	case c.rows == 0 && c.cfg.Delay > 0 && b.Rows < p.max:
		why = CloseDelay
	case c.rows == 0 && b.Rows < p.max:
		why = CloseIdle
	case bk.rows == 0 && c.rows == c.trying && b.Rows < w.room:
		why = CloseIdle // what waits yet goes alone
	case bk.rows == 0 && b.Rows < w.room:
		why = CloseShape
	case b.Rows >= w.room, stopped && b.Rows >= w.rows, stopped && w.rows == w.room: // or the next request is whole, and too large
	default:
		why = w.left
	}
	b.reason = why
	b.limit, b.par, b.half = w.room, w.par, w.half
	if c.cfg.Pad && c.batched {
		c.pad(b, rep.max)
	}
	c.send(rep, b, p.start, now, fx)
	if *c.cfg.Shed {
		c.shedHopeless(&bk.queues[priority], now, fx)
	}
}

// fill moves rows from q, from at on, into the batch until it has target of them. Requests stay
// whole unless they have more than whole rows. True: it stopped early, at a request that does
// not fit.
func (c *core) fill(b *Batch, bk *bucket, q *queue, at cursor, target, whole int, now int64) (stopped bool) {
	first := at.block
	for !stopped && b.Rows < target && !q.end(at) {
		blk := q.blocks[at.block]
		from, to := at.at, at.at
		var rest *item // of which only the first rows go
		for ; to < blk.hi && b.Rows < target; to++ {
			it := blk.items[to]
			n := it.rows()
			if b.Rows > 0 && b.bytes+it.bytes() > c.cfg.BatchBytes {
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
			b.add(span{req: it.req, lo: it.lo, hi: it.hi, retried: it.retried})
			c.uncount(it)
		}
		stop := to < blk.hi
		last := from > blk.lo || stop
		if to > from {
			q.removeRange(at.block, from, to)
		}
		if rest != nil {
			n := target - b.Rows
			part := *rest
			part.hi = part.lo + n
			b.oldest = max(b.oldest, now-rest.since)
			b.add(span{req: rest.req, lo: part.lo, hi: part.hi, retried: rest.retried})
			c.rows -= n
			c.bytes -= part.bytes()
			bk.rows -= n
			c.sources.change(rest.req.source, -n, -part.bytes())
			q.shrink(rest, n)
		}
		if stop {
			break
		}
		if last { // the block is still there, with what stood before the window
			at.block++
		}
		if at.block < len(q.blocks) {
			at.at = q.blocks[at.block].lo
		}
	}
	q.tidy(min(first, len(q.blocks)-1))
	return stopped
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
	b.add(span{req: it.req, lo: it.lo, hi: it.lo + n, retried: it.retried})
	if it.lo += n; it.lo < it.hi {
		it.bucket = c.buckets.of(it.req) // anew: it may have been forgotten when the last of its rows left
		c.enqueue(it, now)
		it.since = since
	}
	if c.cfg.Pad && c.batched {
		c.pad(b, b.replica.max)
	}
}

// chancePause is how long a replica that is believed to be too slow does without a row of those
// that others could do.
const chancePause = int64(time.Second)

// chance sends a replica that is not busy the last row that waits, although it is predicted to be
// late: a prediction is an upper quantile, nothing better is there to do, and a profile that is
// wrong has to be put right by measuring. Not if another replica is predicted to be in time, unless
// this one has had nothing for a while: the prediction that it is too slow would be for good, as
// there is always such a row while others keep up.
func (c *core) chance(rep *Replica, start, now int64, fx *effects) bool {
	if len(c.buckets.ordered) == 0 || rep.busy() {
		return false
	}
	bk := c.buckets.ordered[0]
	_, q := bk.top()
	it := q.tail()
	p := rep.plan(c, start, bk.rowBytes)
	n := min(it.rows(), max(1, rep.strategy.limit(p)))
	if now < rep.free+chancePause && c.otherInTime(rep, n, it.deadline, now) {
		return false
	}
	b := newBatch(c.model, rep)
	c.alone(b, it, n, now)
	b.reason = CloseDeadline
	b.limit = b.Rows
	c.send(rep, b, start, now, fx)
	return true
}

// otherInTime reports whether a replica other than rep is predicted to answer n rows by the
// deadline.
func (c *core) otherInTime(rep *Replica, n int, deadline, now int64) bool {
	for _, other := range c.replicas {
		if other == rep || other.state != replicaLive || !other.profile.known() {
			continue
		}
		if begin := other.begins(now); begin < never && begin+other.profile.planned(n) <= deadline {
			return true
		}
	}
	return false
}

// shedHopeless answers what not even the fastest replica could do in time, with luck.
func (c *core) shedHopeless(q *queue, now int64, fx *effects) {
	for head := q.head(); head != nil && head.req.spans == nil && head.deadline < now+c.capacity.fastest; head = q.head() {
		c.answer(head.req, OutcomeDeadlineNeverSent, errHopeless, fx)
	}
}

// send commits a batch to a replica.
func (c *core) send(rep *Replica, b *Batch, start, now int64, fx *effects) {
	b.sent, b.began = now, unbegun
	b.idle = !rep.busy()
	b.lead = 0
	if b.idle {
		b.lead = start - now
	}
	b.typical = int64(rep.profile.typical(b.Rows))
	b.predicted = rep.profile.planned(b.Rows)
	b.attach()
	if b.tightest < start+b.predicted {
		b.markLate(start + b.predicted)
	}
	b.due = b.tightest
	rep.ceiling.sent(b.Rows)
	rep.inflight = append(rep.inflight, b)
	rep.begin(now)
	c.stats.batches++
	c.stats.rows += uint64(b.Rows - b.padding)
	c.stats.closed[b.reason]++
	c.wakeAt(b.tightest)
	c.wakeAt(rep.timeout(c.cfg.ExecTimeout))
	fx.send = append(fx.send, b)
}
