package scheduler

import (
	"math"
	"time"
)

// capacity is what the live replicas can do together, by their profiles. It is derived anew
// whenever a profile or the set of replicas changes.
type capacity struct {
	cold    bool  // some replica's profile is not known well: predict nothing
	batch   int   // rows in a full batch for each that executes
	fastest int64 // what one row takes on the fastest, with luck; 0 if that is not known
}

// coldBatches is how many batches of a replica must be measured before requests are refused on
// its account.
const coldBatches = 2 * fewSamples

// minRetry is the shortest RetryAfter: clients round it up to their own units anyway.
const minRetry = 10 * time.Millisecond

// measure derives the capacity.
func (c *core) measure() {
	c.capacity = capacity{fastest: never}
	for _, rep := range c.replicas {
		if rep.state != replicaLive {
			continue
		}
		if rep.profile.count < coldBatches {
			c.capacity.cold = true
		}
		p := rep.plan(c, 0, 0)
		c.capacity.batch += rep.concurrency * rep.strategy.limit(p)
		c.capacity.fastest = min(c.capacity.fastest, rep.profile.hoped(1))
	}
	if c.capacity.fastest == never {
		c.capacity.fastest = 0
	}
}

// admit makes sure that there is room for a request and time to answer it, and refuses it
// otherwise. At each of the limits the newest rows of the source that takes most of the queue
// make room for a source that takes less (see sources).
func (c *core) admit(r *Request, now int64, fx *effects) bool {
	if rows := c.rows + r.Rows; rows > c.cfg.QueueRows &&
		!c.displace(r, rows-c.cfg.QueueRows, 0, never, limitRows, fx) {
		return c.overloaded(r, OutcomeQueueRows, limitRows, int64(c.cfg.QueueRows), int64(rows), c.backlog(), fx)
	}
	if bytes := c.bytes + r.bytes; bytes > c.cfg.QueueBytes &&
		!c.displace(r, 0, bytes-c.cfg.QueueBytes, never, limitBytes, fx) {
		return c.overloaded(r, OutcomeQueueBytes, limitBytes, c.cfg.QueueBytes, bytes, c.backlog(), fx)
	}
	if !*c.cfg.Shed || r.deadline == never || c.capacity.cold || c.rows <= c.capacity.batch {
		return true
	}
	ahead := c.ahead(r)
	if ahead <= c.capacity.batch {
		return true
	}
	finish, rate, ok := c.predict(ahead, r.Rows, now)
	if !ok || finish <= r.deadline || c.surplus.admit(r.Rows, rate, float64(c.capacity.batch), now) {
		return true
	}
	late := finish - r.deadline
	if c.displace(r, int(math.Ceil(float64(late)*rate)), 0, r.deadline, limitDeadline, fx) {
		return true
	}
	return c.overloaded(r, OutcomePredicted, limitDeadline, r.deadline-now, finish-now, late, fx)
}

// A surplus lets rows in beyond what can be served one after the other. Under overload most of
// the rows ahead will be skipped, in favour of fresh ones that make large batches: refusing
// every newcomer until they are gone leaves only stale rows to choose from, which cost an
// eighth of the goodput at 2.5 times the capacity. So newcomers are let in at up to twice the
// rate of service, evenly: of a burst, the first ones would be stale again when a replica is
// free.
type surplus struct {
	rows float64 // that may be let in
	at   int64
}

const (
	surplusRate  = 3.0
	surplusBurst = 1.0 / 8.0 // of a full batch of each replica
)

func (s *surplus) admit(rows int, rate, batch float64, now int64) bool {
	s.rows = min(s.rows+surplusRate*rate*float64(now-s.at), max(surplusBurst*batch, float64(rows)))
	s.at = now
	if s.rows < float64(rows) {
		return false
	}
	s.rows -= float64(rows)
	return true
}

// ahead counts the waiting rows that would be served before r's.
func (c *core) ahead(r *Request) int {
	rows := c.trying
	for _, b := range c.buckets.ordered {
		for p := 0; p < r.Priority; p++ {
			rows += b.queues[p].rows
		}
		rows += b.queues[r.Priority].rowsBefore(r.deadline)
	}
	return rows
}

// predict is when rows would be answered that wait behind others, if all goes well: with every
// replica busy at its best rate, at median times, from when it is free. It predicts nothing, ok
// false, while a replica could begin at once. rate is in rows per nanosecond.
//
// It is hopeful on purpose. What it lets through and cannot be served is shed from the queue;
// but what it refuses cannot be served any more.
func (c *core) predict(ahead, rows int, now int64) (finish int64, rate float64, ok bool) {
	work := float64(ahead)
	last := int64(0) // the shortest time that the rows themselves take
	for _, rep := range c.replicas {
		if rep.state != replicaLive {
			continue
		}
		if !rep.busy() {
			return 0, 0, false
		}
		p := rep.plan(c, 0, 0)
		limit := rep.strategy.limit(p)
		t := rep.profile.typical(limit)
		if t <= 0 || rep.next().at == never {
			return 0, 0, false
		}
		r := float64(limit) / t
		rate += r * float64(rep.concurrency)
		for _, end := range rep.ends {
			work += r * float64(max(0, end.at-now))
		}
		if t := rep.profile.hoped(min(rows, limit)); last == 0 || t < last {
			last = t
		}
	}
	if rate == 0 {
		return 0, 0, false
	}
	return now + int64(work/rate) + last, rate, true
}

// What displace looks at, at most, as it looks under the model's lock: the newest rows of a
// source may all be such as must not or need not make room, and a request that will be refused
// must not cost more for it.
const (
	displaceSkips = 64   // rows that are not for displacing
	displaceMost  = 1024 // rows for one request that would be late
)

// displace makes room for r at a limit by answering the newest rows of the source that takes
// most of the queue, if r's source would take less even then. needRows or needBytes must be
// freed; of rows, those count that are served before the given deadline. False: nothing was
// displaced.
//
// What it walks over it displaces, but for a few, or it finds early that nothing is to be had.
func (c *core) displace(r *Request, needRows int, needBytes int64, before int64, limit string, fx *effects) bool {
	heavy := c.sources.heaviest()
	share := c.sources.shareOf(r.source.rows+r.Rows, r.source.bytes+r.bytes)
	switch {
	case heavy == nil, heavy == r.source: // nothing could be gained
		return false
	case heavy.rows < needRows, heavy.bytes < needBytes, before != never && needRows > displaceMost:
		return false
	case c.sources.shareOf(heavy.rows-needRows, heavy.bytes-needBytes) < share:
		return false
	}
	rows, bytes, skipped := 0, int64(0), 0
	it := heavy.newest
	for ; it != nil && (rows < needRows || bytes < needBytes); it = it.older {
		if !it.displaceable(before) {
			if skipped++; skipped > displaceSkips {
				return false
			}
			continue
		}
		rows += it.rows()
		bytes += it.bytes()
		if c.sources.shareOf(heavy.rows-rows, heavy.bytes-bytes) < share {
			return false
		}
	}
	if rows < needRows || bytes < needBytes {
		return false
	}
	err := &OverloadedError{Limit: limitShare, RetryAfter: minRetry, Value: int64(r.source.rows), Asked: int64(heavy.rows), met: limit}
	for next := heavy.newest; next != nil && next != it; {
		victim := next
		next = next.older
		if victim.displaceable(before) {
			c.answer(victim.req, OutcomeDisplaced, err, fx)
		}
	}
	return true
}

// displaceable reports whether a row may make room for one with that deadline: not one that was
// sent, or was to be sent, once before.
func (it *item) displaceable(before int64) bool {
	return it.req.sent == unsent && it.deadline <= before
}

// backlog is about how long it takes to work off what waits.
func (c *core) backlog() int64 {
	if _, rate, ok := c.predict(0, 1, 0); ok {
		return int64(float64(c.rows) / rate)
	}
	return 0
}

// overloaded refuses r at a limit.
func (c *core) overloaded(r *Request, o Outcome, limit string, value, asked, after int64, fx *effects) bool {
	c.refuse(r, o, &OverloadedError{
		Limit: limit, Value: value, Asked: asked, RetryAfter: max(minRetry, time.Duration(after)),
	}, fx)
	return false
}
