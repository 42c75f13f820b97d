package scheduler

import (
	"slices"
	"time"
)

// Counts are the counts of a span of time.
type Counts struct {
	Submitted      uint64 // accepted requests
	Arrived        uint64 // rows of all requests, including refused ones
	Peak           int    // peak of unanswered requests
	Outcomes       map[Outcome]uint64
	Closed         map[CloseReason]uint64
	Batches        uint64 // sent
	Rows           uint64 // in them
	BatchesDone    uint64 // answered or failed
	BatchesFailed  uint64
	Retried        uint64 // requests, or parts of split ones, tried again
	Frames         uint64 // accepted requests that are frames of streams
	FramesAnswered uint64 // frames answered with outputs
	Reordered      uint64 // frames whose number was not above that of the one before
	Suspected      uint64 // times that a replica did not answer within ExecTimeout

	// Waits of idle replicas for clients that ask again on each answer.

	Waits       uint64
	WaitedRows  uint64 // rows that came during them
	WaitsInVain uint64 // in which fewer than half of the expected rows came
}

// Stats is a snapshot of a model, for operators and `shivactl explain`.
type Stats struct {
	ID     ModelID
	Config ModelConfig // effective

	// Now.

	QueueRows   int
	QueueBytes  int64
	Requests    int           // unanswered, waiting or executing
	Pending     int           // requests of which no container has received a row
	Shapes      int           // different shapes that wait
	Sources     int           // sources that have rows waiting
	Streams     int           // with a frame in the last minute, or an unanswered one
	OldestWait  time.Duration // age of the oldest waiting row, since its submission
	OldestBatch time.Duration // age of the oldest batch in flight, since it was sent
	Live        int
	Failing     int // live replicas that fail on every batch
	Replicas    []ReplicaStats
	Unbatched   bool // each request is executed by itself, so no batch has more than one row
	Predictable bool // all profiles have enough measurements to refuse requests by prediction
	Need        Need // how many replicas would meet the deadlines
	// Culprits are the latest requests that were at fault for the loss of a container, the newest
	// first.
	Culprits []Culprit
	Callers  int  // rows of clients that ask again on each answer: unanswered, or due to come
	LastWait Wait // the latest wait for such clients; zero: there was none

	Counts // since the model was made

	// Recent are the counts of the last minute or, after a pause, of the last minute with any
	// events. They cover Span, which ended Ago: 0, unless nothing has happened for a minute.
	Recent Counts
	Span   time.Duration
	Ago    time.Duration
}

// Busy returns the share of the recent time that the live replicas have executed, by their latest
// batches.
func (s *Stats) Busy() float64 {
	took, batches, lanes := time.Duration(0), 0, 0
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.State == ReplicaLive {
			lanes += r.Concurrency
			for _, m := range r.Measured {
				took += m.Took
				batches++
			}
		}
	}
	if batches == 0 || s.Span <= 0 {
		return 0
	}
	return float64(s.Recent.Batches) * float64(took) / float64(batches) / float64(s.Span) / float64(lanes)
}

// ReplicaStats is a snapshot of a replica.
type ReplicaStats struct {
	Label       string
	State       string        // live, failing, suspect, draining
	InFlight    int           // batches
	Executing   int           // batches in flight that it has begun
	GivenUp     int           // batches not answered in time; each takes a slot until answered
	OldestBatch time.Duration // age of the oldest batch in flight or given up, since it was sent
	Failed      uint64        // batches that failed or were not answered in time
	LastError   error         // of the latest of these batches
	LastFailed  time.Duration // time since then
	MaxBatch    int           // effective, in rows
	Declared    int           // the container's declared maximum, in rows; 0: none
	// Largest batch that does not fail, as far as is known; 0: no limit is known.
	Ceiling     int
	Concurrency int // effective number of batches that it executes at once
	AtOnce      int // the container's declared concurrency
	Slots       int // effective number of batches in flight
	// It should get one batch at a time; with more slots its answers may be wrong.
	Serial   bool
	Limit    int           // largest batch that the strategy would send now
	Largest  int           // largest batch measured
	Batches  uint64        // answered
	Rows     uint64        // in them
	Busy     time.Duration // summed execution times of the answered batches
	Overhead time.Duration
	// It takes so long to prepare a row while it executes others; 0: it does not, or does not say.
	Preparation time.Duration
	// Share of its latest batches that stalled, beyond the variation of the model.
	Stalls  float64
	Stall   time.Duration // median length of those stalls
	Profile []ProfilePoint
	// Measured are the last batches that the profile has learned from, the newest first.
	Measured []Measurement
}

// The states of a replica.
const (
	ReplicaLive     = "live"
	ReplicaFailing  = "failing"  // it is live, and its latest batches all failed
	ReplicaSuspect  = "suspect"  // it did not answer in time, and gets only probes until it answers
	ReplicaDraining = "draining" // it gets nothing more
)

// A ProfilePoint is the execution time of a batch of Rows rows.
type ProfilePoint struct {
	Rows    int
	Typical time.Duration // median
	Planned time.Duration // upper quantile, by which batches are planned
}

// A Measurement is the execution time of one batch.
type Measurement struct {
	Rows int
	Took time.Duration
}

// Stats returns a snapshot of the model.
func (m *Model) Stats() Stats {
	now := m.sched.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.core
	s := Stats{
		ID: m.id, Config: c.cfg,
		QueueRows: c.rows, QueueBytes: c.bytes, Requests: c.requests,
		Shapes: len(c.buckets.ordered), Sources: len(c.sources.heap), Streams: c.streams.recent(now), Live: c.live,
		Unbatched: !c.batched, Predictable: c.live > 0 && !c.capacity.cold,
		Counts: c.stats.since(&counters{}),
	}
	from, peak := c.past.recent(now, &c.stats)
	ago := c.past.ended(now)
	s.Recent, s.Span, s.Ago = c.stats.since(&from.counters), time.Duration(now-ago-from.at), time.Duration(ago)
	s.Recent.Peak = peak
	s.OldestWait, s.Pending = c.waiting(now)
	s.Need = c.need(now)
	s.Culprits = slices.Clone(c.culprits)
	for i := range s.Culprits {
		s.Culprits[i].Ago = time.Duration(now - s.Culprits[i].at)
	}
	s.Callers, s.LastWait = c.sources.inPlay(), c.lastWait
	for _, r := range c.replicas {
		one := r.stats(c, now)
		s.OldestBatch = max(s.OldestBatch, one.OldestBatch)
		if one.State == ReplicaFailing {
			s.Failing++
		}
		s.Replicas = append(s.Replicas, one)
	}
	return s
}

// waiting returns the age of the oldest waiting row, since its submission, and how many requests
// have not been sent yet. It visits every request: rows are in the order of their deadlines, and
// those of lost replicas return late.
func (c *core) waiting(now int64) (oldest time.Duration, pending int) {
	first := now
	for _, bk := range c.buckets.ordered {
		for i := range bk.queues {
			for _, b := range bk.queues[i].blocks {
				for _, it := range b.items[b.lo:b.hi] {
					first = min(first, it.req.submitted)
					if it.req.sent == unsent { // counted once: an unsent request has one item
						pending++
					}
				}
			}
		}
	}
	for _, r := range c.retries {
		for i := range r.spans {
			if req := r.spans[i].req; req != nil {
				first = min(first, req.submitted)
			}
		}
	}
	return time.Duration(now - first), pending
}

func (r *Replica) stats(c *core, now int64) ReplicaStats {
	p := r.plan(c, 0, 0)
	s := ReplicaStats{
		Label: r.label, State: r.condition(), InFlight: len(r.inflight), Executing: r.executing(),
		GivenUp: len(r.overdue),
		Failed:  r.failed, LastError: r.lastError, LastFailed: time.Duration(now - r.lastFailed),
		Declared: r.declared, AtOnce: max(1, r.options.Concurrency),
		MaxBatch: r.max, Ceiling: c.ceilingOf(r), Concurrency: r.concurrency, Slots: r.slots, Serial: r.options.Serial,
		Limit: r.strategy.limit(p), Largest: r.profile.largest, Batches: r.batches, Rows: r.rows,
		Busy:     time.Duration(r.busied),
		Overhead: time.Duration(r.overhead.value(r.profile.typical(1))), Preparation: time.Duration(r.preparing.of(1)),
	}
	for _, list := range [][]*Batch{r.inflight, r.overdue} {
		for _, b := range list {
			s.OldestBatch = max(s.OldestBatch, time.Duration(now-b.sent))
		}
	}
	if n := r.profile.n; n > 0 {
		s.Stalls = float64(r.profile.spread.stalls) / float64(n)
		s.Stall = time.Duration(r.profile.spread.stall)
	}
	s.Measured = make([]Measurement, r.profile.n)
	for i := range s.Measured {
		m := &r.profile.recent[i]
		s.Measured[i] = Measurement{m.rows, time.Duration(m.ns)}
	}
	for _, at := range r.profile.points {
		n := int(at.rows + 0.5)
		s.Profile = append(s.Profile, ProfilePoint{
			Rows: n, Typical: time.Duration(r.profile.typical(n)), Planned: time.Duration(r.profile.planned(n)),
		})
	}
	return s
}
