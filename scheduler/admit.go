package scheduler

import (
	"math"
	"time"
)

// capacity is the joint capacity of the live replicas, by their profiles. It is recomputed whenever
// a profile or the set of replicas changes.
type capacity struct {
	cold    bool  // some profile has too few measurements to predict from
	batch   int   // rows of one full batch for every batch that may execute at once
	fastest int64 // optimistic time of one row on the fastest replica, in ns; 0: unknown
}

// coldBatches is the number of measured batches below which a replica's profile refuses no
// requests.
const coldBatches = 2 * fewSamples

// minRetry is the shortest RetryAfter: clients round it up to their own units anyway.
const minRetry = 10 * time.Millisecond

// A contribution is a replica's part of the capacity; zero if the replica is not live.
type contribution struct {
	cold    bool
	batch   int
	fastest int64
}

func (r *Replica) contribution(c *core) contribution {
	if r.state != replicaLive {
		return contribution{}
	}
	return contribution{
		cold:    r.profile.count < coldBatches,
		batch:   r.concurrency * r.strategy.limit(r.plan(c, 0, 0)),
		fastest: r.profile.optimistic(1),
	}
}

// measure recomputes the contributions of all replicas, and the capacity.
func (c *core) measure() {
	for _, rep := range c.replicas {
		rep.contributes = rep.contribution(c)
	}
	c.sum()
}

// remeasure recomputes the capacity after the profile of one replica has changed. Reading the
// profiles of all replicas was half the cost of an answer in a model that had 80.
func (c *core) remeasure(rep *Replica) {
	rep.contributes = rep.contribution(c)
	c.sum()
}

func (c *core) sum() {
	c.capacity = capacity{fastest: never}
	for _, rep := range c.replicas {
		if rep.state != replicaLive {
			continue
		}
		n := &rep.contributes
		c.capacity.cold = c.capacity.cold || n.cold
		c.capacity.batch += n.batch
		c.capacity.fastest = min(c.capacity.fastest, n.fastest)
	}
	if c.capacity.fastest == never {
		c.capacity.fastest = 0
	}
}

// admit refuses a request if the queue has no room for it or it cannot be answered in time. At
// each limit the newest rows of the sources with the largest shares of the queue give way to a
// source with a smaller share (see sources).
//
// A frame that supersedes others of its stream, s, adds only the difference in size to the queue.
// No prediction refuses a frame of a stream that takes turns: predictions go by deadlines, so a
// stream whose frames arrive in step with those of other streams could be refused for ever. Such a
// stream has a bounded number of frames waiting, and the number of streams is bounded.
func (c *core) admit(r *Request, s *stream, now int64, fx *effects) bool {
	free, freeBytes, turns := 0, int64(0), false
	if s != nil {
		keep := c.keepOf(r.Frame)
		s.supersedes(keep, func(old *Frame) {
			left := int(old.req.left)
			free += left
			freeBytes += old.req.bytesOf(0, left)
		})
		turns = keep > 0
	}
	if rows := c.rows - free + r.Rows; rows > c.cfg.QueueRows &&
		!c.displace(r, rows-c.cfg.QueueRows, 0, never, limitRows, fx) {
		return c.overloaded(r, OutcomeQueueRows, OverloadedError{
			Limit: limitRows, Value: int64(c.cfg.QueueRows), Needed: int64(rows), RetryAfter: c.backlog(),
		}, fx)
	}
	if bytes := c.bytes - freeBytes + r.bytes; bytes > c.cfg.QueueBytes &&
		!c.displace(r, 0, bytes-c.cfg.QueueBytes, never, limitBytes, fx) {
		return c.overloaded(r, OutcomeQueueBytes, OverloadedError{
			Limit: limitBytes, Value: c.cfg.QueueBytes, Needed: bytes, RetryAfter: c.backlog(),
		}, fx)
	}
	if turns || !*c.cfg.Shed || r.deadline == never || c.capacity.cold || c.rows <= c.capacity.batch {
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
	return c.overloaded(r, OutcomePredicted, OverloadedError{
		Limit: limitDeadline, Value: r.deadline - now, Needed: finish - now, RetryAfter: time.Duration(late),
	}, fx)
}

// A surplus admits more rows than could be served in order of arrival. Under overload the strategy
// skips most of the rows ahead in favour of fresh ones, which make large batches. Refusing every
// newcomer until the old rows are gone leaves only stale rows to choose from; that cost an eighth
// of the goodput at 2.5 times the capacity. So newcomers are admitted at up to three times the
// service rate. They are spread evenly over time, because the first rows of a burst would be stale
// when a replica becomes free.
type surplus struct {
	rows float64 // that may still be admitted
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

// Fastest returns how long a row takes at least on the fastest replica, by its optimistic times; 0:
// nothing is known.
func (m *Model) Fastest() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Duration(m.core.capacity.fastest)
}

// ahead counts the waiting rows that would be served before those of r.
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

// predict estimates, optimistically, when rows that wait behind ahead other rows would be answered:
// every replica works at its best rate and at median times from the moment it is free. ok is false,
// and nothing is predicted, while a replica could start at once. rate is in rows per nanosecond.
//
// It is optimistic on purpose: a row that is admitted and cannot be served is shed later, but a
// row that is refused is lost.
func (c *core) predict(ahead, rows int, now int64) (finish int64, rate float64, ok bool) {
	work := float64(ahead)
	last := int64(0) // the shortest execution of the rows themselves
	for _, rep := range c.replicas {
		if rep.state != replicaLive {
			continue
		}
		if !rep.busy() || rep.sharing.on {
			return 0, 0, false
		}
		p := rep.plan(c, 0, 0)
		limit := rep.strategy.limit(p)
		t := p.typical(limit)
		if t <= 0 {
			return 0, 0, false
		}
		r := float64(limit) / t
		rate += r * float64(rep.concurrency)
		if rep.busy() {
			if rep.next().at == never {
				return 0, 0, false
			}
			for _, end := range rep.ends {
				work += r * float64(max(0, end.at-now))
			}
		}
		if t := rep.profile.optimistic(p.whole(min(rows, limit))); last == 0 || t < last {
			last = t
		}
	}
	if rate == 0 {
		return 0, 0, false
	}
	return now + int64(work/rate) + last, rate, true
}

// Bounds on the rows that displace examines, since it holds the model's lock. The newest rows of a
// source may all be exempt from displacement, and refusing a request must stay cheap.
const (
	displaceSources = 64   // that may have to give rows
	displaceSkips   = 64   // rows of a source that may not be displaced ...
	displaceMisses  = 256  // ... and of all sources
	displaceMost    = 1024 // rows displaced for one request by a prediction
)

// displace makes room for r at a limit: it answers the newest rows of sources with larger shares of
// the queue. The source with the largest share gives rows first, then the others, each as long as
// its share stays no smaller than that of r's source after the exchange. displace frees needRows,
// of which only rows due before the given deadline count, or needBytes. It returns false if it
// displaced nothing.
//
// A flood may come on many connections, each with fewer rows than are needed. When a single source
// had to give all of them, a flood on twenty connections kept a modest source from being served at
// all.
//
// For a prediction, more than displaceMost rows are never needed: r is then admitted although it is
// predicted to be late, and the next requests of its source find a shorter queue.
func (c *core) displace(r *Request, needRows int, needBytes int64, before int64, limit string, fx *effects) bool {
	share := c.sources.shareOf(r.source.rows+r.Rows, r.source.bytes+r.bytes)
	if before != never {
		needRows = min(needRows, displaceMost)
	}
	rows, bytes, misses := 0, int64(0), 0
	victims := c.victims[:0]
	defer func() { clear(victims); c.victims = victims[:0] }()
	for _, heavy := range c.sources.heavy(displaceSources) {
		if heavy == r.source || heavy.share < share {
			continue
		}
		left, leftBytes, skipped := heavy.rows, heavy.bytes, 0
		for it := heavy.newest; it != nil && (rows < needRows || bytes < needBytes); it = it.older {
			if !it.displaceable(before) {
				if skipped, misses = skipped+1, misses+1; skipped > displaceSkips || misses > displaceMisses {
					break
				}
				continue
			}
			left, leftBytes = left-it.rows(), leftBytes-it.bytes()
			if c.sources.shareOf(left, leftBytes) < share {
				break
			}
			rows, bytes = rows+it.rows(), bytes+it.bytes()
			victims = append(victims, victim{it.req, int64(heavy.rows)})
		}
		if rows >= needRows && bytes >= needBytes {
			break
		}
	}
	if rows < needRows || bytes < needBytes {
		return false
	}
	var err *OverloadedError
	for _, v := range victims {
		if err == nil || err.Needed != v.sourceRows {
			err = &OverloadedError{Limit: limitShare, RetryAfter: minRetry, Value: int64(r.source.rows),
				Needed: v.sourceRows, met: limit}
		}
		c.answer(v.req, OutcomeDisplaced, err, fx)
	}
	return true
}

// A victim is a request that displace answers.
type victim struct {
	req        *Request
	sourceRows int64 // rows of its source
}

// displaceable reports whether a row may be displaced by one with that deadline. Rows that were
// sent before, or were about to be, may not.
func (it *item) displaceable(before int64) bool {
	return it.req.sent == unsent && it.deadline <= before
}

// backlog estimates how long the waiting rows take to serve.
func (c *core) backlog() time.Duration {
	if _, rate, ok := c.predict(0, 1, 0); ok {
		return time.Duration(float64(c.rows) / rate)
	}
	return 0
}

// overloaded refuses r at a limit. It returns false.
func (c *core) overloaded(r *Request, o Outcome, err OverloadedError, fx *effects) bool {
	err.RetryAfter = max(minRetry, err.RetryAfter)
	c.refuse(r, o, &err, fx)
	return false
}
