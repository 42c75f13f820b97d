package scheduler

import (
	"fmt"
	"math"
	"slices"
)

// Retries of the rows of failed batches. A batch that fails has a bad row, or is too large for
// its container, and the error does not tell which. So it is halved, and the half that fails
// again is halved, until a single request is left, which gets the error. That takes a batch or
// two for each doubling. Trying the requests one by one took one batch for each: with one bad row
// in a hundred most of the others missed their deadlines, and with a size at fault all of them.
//
// If batches of that size have been answered before, one half is tried. If that half is answered,
// the other one must be to blame, and is halved itself without being tried; if it fails, nothing is
// known of the other half, whose rows return to the queue. If no batch of that size was answered
// before, both halves are tried. In either case the size was at fault if all parts of a failed
// batch were answered (see ceiling).

// A failure is a failed batch whose rows are tried again.
type failure struct {
	replica *Replica // nil: its batch was lost
	rows    int
	took    int64
	parts   int  // parts that are not tried yet
	failed  bool // a part has failed as well, or a row was named
	untried int  // rows without a result: answered meanwhile, or given up
	lineup  bool // the batch was lost, and its parts are groups, see culprit.go
	died    bool // its container has ended
}

// 1/clarity is the largest share of a failed batch's rows that may stay untried for a verdict on
// its size: with more, the bad row may have been among them.
const clarity = 8

// A retry is rows of a failed batch that wait to be sent as a batch of their own.
type retry struct {
	failure  *failure
	spans    []span
	rows     int   // rows that still wait
	tightest int64 // a lower bound of their deadlines
	since    int64
	// The other half, which waits for the outcome and is to blame if this half is answered.
	rest *retry
	// A replica that hangs with its rows; nil: none does. The retry waits until it has answered or
	// is removed, but not beyond the given time.
	held  *Replica
	until int64
}

// retriesAtOnce is how many retries in a row a replica gets while other rows wait.
const retriesAtOnce = 7

// hopeless is the number of consecutive failed batches after which rows are answered with the error
// at once, without retries: finding one bad row in a batch of 32,768 takes that many. From then on,
// one batch in this number has a single row, to find out whether the size is at fault.
const hopeless = 16

// sizeLimit bounds a batch that begins at start, according to the failures so far.
func (c *core) sizeLimit(rep *Replica, start int64) int {
	most := math.MaxInt
	if c.cfg.Pad { // all batches have one size
		return most
	}
	for _, known := range [...]*ceiling{&rep.ceiling, &c.deadly.ceiling} {
		if known.rows > 0 {
			most = min(most, known.most(start))
		}
	}
	switch {
	case c.failing < hopeless:
		most = min(most, c.bad.most())
	case c.failing%hopeless == 0:
		most = 1
	}
	return most
}

// ceilingOf returns the largest batch that a replica can execute, as far as is known; 0: any.
func (c *core) ceilingOf(rep *Replica) int {
	if own := rep.ceiling.rows; own > 0 && (c.deadly.rows == 0 || own < c.deadly.rows) {
		return own
	}
	return c.deadly.rows
}

// passed records an answered batch. named: the answer had errors of single rows.
func (c *core) passed(b *Batch, named bool, now int64) {
	rep := b.replica
	c.failing = 0
	rep.judge(nil)
	rep.ceiling.passed(b.Rows, rep.max, now)
	c.deadly.passed(b.Rows, rep.max, now)
	r := b.retry
	if r == nil {
		c.bad.batch(b.Rows-b.padding, false)
		return
	}
	f := r.failure
	f.parts--
	f.failed = f.failed || named
	if rest := r.rest; rest != nil {
		r.rest = nil
		live, rows := c.takeRetry(rest)
		switch {
		case rows == 0:
		case len(live) == 1:
			c.addRetry(f, live, nil, now)
		default:
			one, other := halve(live, rows)
			c.addRetry(f, one, other, now)
		}
	}
	c.conclude(f, now)
}

// failed handles the requests of a batch that failed in the container.
func (c *core) failed(b *Batch, err error, took, now int64, fx *effects) {
	rep := b.replica
	// If err is of another kind, the container is not at fault.
	ours := outcomeOfFailure(err) == OutcomeContainerFailed
	plausible := ours && rep.ceiling.plausible(b.Rows)
	if ours {
		c.failing++
		rep.blame(err, now)
		rep.ceiling.failed(b.Rows, took, now)
	} else {
		rep.ceiling.ended(b.Rows, now)
	}
	c.deadly.ended(b.Rows, now)
	if b.retry != nil {
		b.retry.failure.failed = true
		c.partTried(b.retry, now)
	} else {
		rep.judge(err)
		c.bad.batch(b.Rows-b.padding, ours)
	}
	live, rows := b.takeSpans()
	alone := b.requests == 1 && (b.Rows == 1 || !plausible)
	if alone || !*c.cfg.Retry || !c.hopeful(now) || c.failing >= hopeless {
		for _, s := range live {
			if s.req.state == stateWaiting { // not answered yet by another of its spans
				c.answer(s.req, outcomeOfFailure(err), err, fx)
			}
		}
		switch {
		case alone:
			rep.ceiling.clear()
		case c.failing < hopeless:
			rep.ceiling.unclear(b.Rows, took, now)
		}
		return
	}
	for _, s := range live {
		c.streams.returned(s.req)
	}
	f := &failure{replica: rep, rows: b.Rows, took: took, untried: b.Rows - b.padding - rows}
	switch {
	case rows == 0: // all its requests were answered meanwhile
		c.conclude(f, now)
	case rows == 1:
		c.addRetry(f, live, nil, now)
	case plausible:
		one, other := halve(live, rows)
		c.addRetry(f, one, nil, now)
		c.addRetry(f, other, nil, now)
	default:
		one, other := halve(live, rows)
		c.addRetry(f, one, other, now)
	}
}

// conclude decides whether the size of a failed batch was at fault, once all its parts were
// tried.
func (c *core) conclude(f *failure, now int64) {
	switch {
	case f.parts > 0 || f.failed:
	case f.lineup:
		if f.died {
			c.deadly.blame(f.rows, now)
		}
	case f.untried*clarity > f.rows:
		f.replica.ceiling.unclear(f.rows, f.took, now)
	default:
		c.bad.excuse()
		f.replica.ceiling.fault(f.rows, f.took, now)
	}
}

// partTried records that a part ended without an answer. Nothing is known of the half that waited
// for it.
func (c *core) partTried(r *retry, now int64) {
	f := r.failure
	f.parts--
	if rest := r.rest; rest != nil {
		r.rest = nil
		f.untried += rest.rows
		live, _ := c.takeRetry(rest)
		for _, s := range live {
			c.requeue(s, now)
		}
	}
	c.conclude(f, now)
}

// halve cuts spans of two or more rows in two, between requests if there are several.
func halve(spans []span, rows int) (one, other []span) {
	if len(spans) == 1 {
		first, second := spans[0], spans[0]
		first.hi = first.lo + rows/2
		second.lo = first.hi
		return []span{first}, []span{second}
	}
	n, i := 0, 0
	for ; i < len(spans)-1 && (i == 0 || n+spans[i].hi-spans[i].lo <= rows/2); i++ {
		n += spans[i].hi - spans[i].lo
	}
	return spans[:i], spans[i:]
}

// addRetry makes a retry of spans. rest is the half that is to blame if they are answered.
func (c *core) addRetry(f *failure, spans, rest []span, now int64) *retry {
	f.parts++
	r := c.newRetry(f, spans, now)
	if rest != nil {
		r.rest = c.newRetry(f, rest, now)
	}
	c.retries = append(c.retries, r)
	return r
}

func (c *core) newRetry(f *failure, spans []span, now int64) *retry {
	r := &retry{failure: f, spans: slices.Clone(spans), tightest: never, since: now}
	for i := range r.spans {
		s := &r.spans[i]
		n := s.hi - s.lo
		s.retry = r
		s.next, s.req.spans = s.req.spans, s
		r.rows += n
		r.tightest = min(r.tightest, s.req.deadline)
		c.rows += n
		c.trying += n
		c.bytes += s.req.bytesOf(s.lo, s.hi)
		c.stats.retried++
	}
	c.wakeAt(r.tightest)
	return r
}

// leaveRetry subtracts a span from its retry.
func (c *core) leaveRetry(s *span) {
	n := s.hi - s.lo
	s.retry.rows -= n
	c.rows -= n
	c.trying -= n
	c.bytes -= s.req.bytesOf(s.lo, s.hi)
	s.retry = nil
}

// takeRetry removes the spans that still wait from a retry.
func (c *core) takeRetry(r *retry) (live []span, rows int) {
	for i := range r.spans {
		if s := &r.spans[i]; s.req != nil {
			c.leaveRetry(s)
		}
	}
	return takeSpans(r.spans)
}

// takeSpans removes the spans of unanswered requests from a batch.
func (b *Batch) takeSpans() (live []span, rows int) { return takeSpans(b.spans) }

func takeSpans(spans []span) (live []span, rows int) {
	for i := range spans {
		s := &spans[i]
		if s.req == nil {
			continue
		}
		live = append(live, span{req: s.req, lo: s.lo, hi: s.hi, record: s.record})
		rows += s.hi - s.lo
		s.detach()
	}
	return live, rows
}

// feedRetry sends the first retry that fits the replica. It returns false if there is none.
func (c *core) feedRetry(rep *Replica, start, now int64, fx *effects) bool {
	c.dropRetries(now)
	for i := 0; i < len(c.retries); {
		r := c.retries[i]
		if r.waits(now) {
			i++
			continue
		}
		if *c.cfg.Shed {
			c.shedDoomed(r, start+rep.profile.optimistic(r.rows), fx)
			if r.rows == 0 {
				c.dropRetries(now)
				continue
			}
		}
		if !rep.mayTake(r) {
			return false
		}
		c.retries = slices.Delete(c.retries, i, i+1)
		first := r.spans[slices.IndexFunc(r.spans, func(s span) bool { return s.req != nil })].req
		limit := max(1, rep.strategy.limit(rep.plan(c, start, first.bytes/int64(first.Rows))))
		if r.rows > limit {
			// The replica is not the one that failed, or its ceiling is lower now.
			if r.apart() {
				c.divide(r, i, now)
			} else {
				c.unretry(r, now)
			}
			continue
		}
		live, _ := c.takeRetry(r)
		b := newBatch(c.model, rep)
		for _, s := range live {
			b.add(s)
		}
		b.retry = r
		b.oldest = now - r.since
		b.reason = CloseRetry
		b.limit = b.Rows
		if c.cfg.Pad && c.batched {
			c.pad(b, rep.max)
		}
		c.send(rep, b, start, now, fx)
		return true
	}
	return false
}

// unretry returns the rows of a retry to the queue.
func (c *core) unretry(r *retry, now int64) {
	r.failure.untried += r.rows
	live, _ := c.takeRetry(r)
	for _, s := range live {
		c.requeue(s, now)
	}
	c.partTried(r, now)
}

// divide puts the halves of a retry into the list at index i, in its place.
func (c *core) divide(r *retry, i int, now int64) {
	one, other := halve(c.takeRetry(r))
	first, second := c.newRetry(r.failure, one, now), c.newRetry(r.failure, other, now)
	r.failure.parts++
	c.retries = slices.Insert(c.retries, i, first, second)
}

// dropRetries drops the empty retries.
func (c *core) dropRetries(now int64) {
	for i := 0; i < len(c.retries); {
		if r := c.retries[i]; r.rows == 0 {
			c.retries = slices.Delete(c.retries, i, i+1)
			c.partTried(r, now)
		} else {
			i++
		}
	}
}

// shedDoomed answers rows of a retry that would be late even by optimistic times.
func (c *core) shedDoomed(r *retry, end int64, fx *effects) {
	if r.tightest >= end {
		return
	}
	for i := range r.spans {
		if s := &r.spans[i]; s.req != nil && s.req.deadline < end && !s.req.executing() {
			c.answer(s.req, OutcomeDeadlineContainer, errHopeless, fx)
		}
	}
}

// eachRetry calls f for every retry.
func (c *core) eachRetry(f func(*retry)) {
	for _, r := range c.retries {
		f(r)
		if r.rest != nil {
			f(r.rest)
		}
	}
	for _, rep := range c.replicas {
		for _, b := range rep.inflight {
			if b.retry != nil && b.retry.rest != nil {
				f(b.retry.rest)
			}
		}
	}
}

// auditRetries compares the retries with their requests, and adds up their rows.
func (c *core) auditRetries(requests map[*Request]int) (rows int, bytes int64, err error) {
	parts := make(map[*failure]int)
	for _, r := range c.retries {
		parts[r.failure]++
	}
	for _, rep := range c.replicas {
		for _, b := range rep.inflight {
			if b.retry != nil && b.state == batchOut {
				parts[b.retry.failure]++
			}
		}
	}
	for f, n := range parts {
		if n != f.parts {
			return 0, 0, fmt.Errorf("%d parts of a failed batch are untried, the count is %d", n, f.parts)
		}
	}
	c.eachRetry(func(r *retry) {
		n := 0
		for i := range r.spans {
			s := &r.spans[i]
			if s.req == nil {
				continue
			}
			n += s.hi - s.lo
			bytes += s.req.bytesOf(s.lo, s.hi)
			requests[s.req] += s.hi - s.lo
			switch {
			case s.retry != r || !s.linked():
				err = fmt.Errorf("a request does not link to its rows %d to %d in a retry", s.lo, s.hi)
			case s.req.state != stateWaiting:
				err = fmt.Errorf("a retry has rows of an answered request")
			case s.req.deadline < r.tightest:
				err = fmt.Errorf("a retry's earliest deadline is %d, a request in it has %d",
					r.tightest, s.req.deadline)
			}
		}
		if n != r.rows {
			err = fmt.Errorf("a retry has %d rows, its count is %d", n, r.rows)
		}
		rows += n
	})
	return rows, bytes, err
}
