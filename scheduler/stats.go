package scheduler

import "time"

// Counts are what has happened in a span of time.
type Counts struct {
	Submitted     uint64 // accepted requests
	Peak          int    // most requests unanswered at a time
	Outcomes      map[Outcome]uint64
	Closed        map[CloseReason]uint64
	Batches       uint64 // sent
	Rows          uint64 // in them
	BatchesDone   uint64 // answered or failed
	BatchesFailed uint64
	Retried       uint64 // requests, or parts of split ones, that were tried again
	Suspected     uint64 // times that a replica did not answer within ExecTimeout
}

// Stats is a model at one moment, for people and for `shivactl explain`.
type Stats struct {
	ID     ModelID
	Config ModelConfig // in force

	// Now.

	QueueRows   int
	QueueBytes  int64
	Requests    int // unanswered, waiting or executing
	Shapes      int // different ones that wait
	Sources     int // different ones that have rows waiting
	OldestWait  time.Duration
	Live        int
	Replicas    []ReplicaStats
	Predictable bool // all replicas' profiles are known well enough to refuse requests by them

	Counts // since the model was made

	// Recent are the counts of the last minute, or, after a pause, of the last time that anything happened.
	// They begin Span ago.
	Recent Counts
	Span   time.Duration
}

// ReplicaStats is one replica at one moment.
type ReplicaStats struct {
	Label       string
	State       string // live, suspect, draining
	InFlight    int    // batches
	Executing   int    // of them, those that it has begun
	GivenUp     int    // batches that it has not answered in time, each of which takes a slot until it does
	MaxBatch    int    // in force
	Ceiling     int    // most rows that do not fail, as far as failures show; 0: no size does
	Concurrency int    // most batches that it executes at once, in force
	Slots       int    // most batches in flight, in force
	Serial      bool   // it should get one batch at a time; with more slots than one its answers may be wrong
	Limit       int    // most rows that the strategy would send now
	Largest     int    // largest batch measured
	Batches     uint64 // answered
	Rows        uint64 // in them
	Overhead    time.Duration
	Stalls      float64       // share of its last batches that were held up, beyond the variation of the model
	Stall       time.Duration // by how much, whatever their size; the median
	Profile     []ProfilePoint
}

// A ProfilePoint is the execution time of a batch of Rows.
type ProfilePoint struct {
	Rows    int
	Typical time.Duration // median
	Planned time.Duration // the upper quantile that batches are planned with
}

// Stats looks at the model.
func (m *Model) Stats() Stats {
	now := m.sched.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.core
	s := Stats{
		ID: m.id, Config: c.cfg,
		QueueRows: c.rows, QueueBytes: c.bytes, Requests: c.requests,
		Shapes: len(c.buckets.ordered), Sources: len(c.sources.heap), Live: c.live,
		Predictable: c.live > 0 && !c.capacity.cold,
		Counts:      c.stats.since(&counters{}),
	}
	from, peak := c.past.recent(now, &c.stats)
	s.Recent, s.Span = c.stats.since(&from.counters), time.Duration(now-from.at)
	s.Recent.Peak = peak
	for _, b := range c.buckets.ordered {
		if _, q := b.top(); q != nil {
			s.OldestWait = max(s.OldestWait, time.Duration(now-q.head().since))
		}
	}
	for _, r := range c.replicas {
		s.Replicas = append(s.Replicas, r.stats(c))
	}
	return s
}

func (r *Replica) stats(c *core) ReplicaStats {
	p := r.plan(c, 0, 0)
	s := ReplicaStats{
		Label: r.label, State: r.state.String(), InFlight: len(r.inflight), Executing: r.executing(), GivenUp: len(r.given),
		MaxBatch: r.max, Ceiling: r.ceiling.rows, Concurrency: r.concurrency, Slots: r.slots, Serial: r.options.Serial,
		Limit: r.strategy.limit(p), Largest: r.profile.largest, Batches: r.batches, Rows: r.rows,
		Overhead: time.Duration(r.overhead.value(r.profile.typical(1))),
	}
	if kept := r.profile.kept; kept > 0 {
		s.Stalls = float64(r.profile.spread.stalls) / float64(kept)
		s.Stall = time.Duration(r.profile.spread.stall)
	}
	for _, at := range r.profile.points {
		n := int(at.rows + 0.5)
		s.Profile = append(s.Profile, ProfilePoint{
			Rows: n, Typical: time.Duration(r.profile.typical(n)), Planned: time.Duration(r.profile.planned(n)),
		})
	}
	return s
}
