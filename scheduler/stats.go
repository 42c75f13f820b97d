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
	Requests    int           // unanswered, waiting or executing
	Shapes      int           // different ones that wait
	Sources     int           // different ones that have rows waiting
	OldestWait  time.Duration // since the waiting row was submitted that was submitted first
	OldestBatch time.Duration // since the batch was sent that has not been answered for longest
	Live        int
	Failing     int // of the live ones, those that fail on every batch
	Replicas    []ReplicaStats
	Predictable bool // all replicas' profiles are known well enough to refuse requests by them

	Counts // since the model was made

	// Recent are the counts of the last minute, or, after a pause, of the last time that
	// anything happened. They begin Span ago.
	Recent Counts
	Span   time.Duration
}

// ReplicaStats is one replica at one moment.
type ReplicaStats struct {
	Label       string
	State       string        // live, failing, suspect, draining
	InFlight    int           // batches
	Executing   int           // of them, those that it has begun
	GivenUp     int           // batches that it has not answered in time, each of which takes a slot until it does
	OldestBatch time.Duration // since the one of both was sent that has not been answered for longest
	Failed      uint64        // batches that it failed on, or did not answer in time
	LastError   error         // of the last of those
	LastFailed  time.Duration // since then
	MaxBatch    int           // in force
	Declared    int           // most rows that the container says it takes; 0: it does not say
	Ceiling     int           // most rows that do not fail, as far as failures show; 0: no size does
	Concurrency int           // most batches that it executes at once, in force
	AtOnce      int           // most that the container says it executes at once
	Slots       int           // most batches in flight, in force
	Serial      bool          // it should get one batch at a time; with more slots than one its answers may be wrong
	Limit       int           // most rows that the strategy would send now
	Largest     int           // largest batch measured
	Batches     uint64        // answered
	Rows        uint64        // in them
	Overhead    time.Duration
	Stalls      float64       // share of its last batches that were held up, beyond the variation of the model
	Stall       time.Duration // by how much, whatever their size; the median
	Profile     []ProfilePoint
}

// The states of a replica.
const (
	ReplicaLive     = "live"
	ReplicaFailing  = "failing"  // it takes batches, and has failed on all of the last ones
	ReplicaSuspect  = "suspect"  // it did not answer in time, and gets only probes until it does
	ReplicaDraining = "draining" // it gets nothing more
)

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
	s.OldestWait = c.oldest(now)
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

// oldest is how long ago the waiting row was submitted that was submitted first. It looks at every
// request: rows stand in the order of their deadlines, and those of lost replicas come back late.
func (c *core) oldest(now int64) time.Duration {
	first := now
	for _, bk := range c.buckets.ordered {
		for i := range bk.queues {
			for _, b := range bk.queues[i].blocks {
				for _, it := range b.items[b.lo:b.hi] {
					first = min(first, it.req.submitted)
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
	return time.Duration(now - first)
}

func (r *Replica) stats(c *core, now int64) ReplicaStats {
	p := r.plan(c, 0, 0)
	s := ReplicaStats{
		Label: r.label, State: r.condition(), InFlight: len(r.inflight), Executing: r.executing(), GivenUp: len(r.given),
		Failed: r.failed, LastError: r.lastError, LastFailed: time.Duration(now - r.lastFailed),
		Declared: r.declared, AtOnce: max(1, r.options.Concurrency),
		MaxBatch: r.max, Ceiling: r.ceiling.rows, Concurrency: r.concurrency, Slots: r.slots, Serial: r.options.Serial,
		Limit: r.strategy.limit(p), Largest: r.profile.largest, Batches: r.batches, Rows: r.rows,
		Overhead: time.Duration(r.overhead.value(r.profile.typical(1))),
	}
	for _, list := range [][]*Batch{r.inflight, r.given} {
		for _, b := range list {
			s.OldestBatch = max(s.OldestBatch, time.Duration(now-b.sent))
		}
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
