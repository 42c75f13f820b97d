package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A Stage has the counts of a stage of a pipeline.
type Stage struct {
	name string // set once

	mu     sync.Mutex
	all    StageCounts
	recent [recentSlots]recentCounts // guarded by mu, as all is
}

// The last minute, in slots of which the oldest is begun again.
const (
	recentSpan  = 10 * time.Second
	recentSlots = 6
)

type recentCounts struct {
	slot int64 // since 1970
	StageCounts
}

// A StageRun is what one request was at a stage.
type StageRun struct {
	Rows    Ended  // that it had there, by how they ended
	LeftOut uint64 // elements that became no rows, since keep left them out
	// NotBegun are Rows of a stage that was not begun, as it could not be in time.
	NotBegun uint64
	Took     time.Duration // from when its inputs were there to its last row
	Waited   time.Duration // of that, until its first row was sent to a container
	Whole    time.Duration // from the arrival of the request to its deadline
}

// StageCounts are sums over requests.
type StageCounts struct {
	Requests, LeftOut, NotBegun uint64
	Rows                        Ended

	// Of the requests, those that had rows there which were begun.
	Begun        uint64
	Took, Waited time.Duration
	Share        float64 // sum of the parts that Took has of Whole
	buckets      [histogramBuckets]uint64
}

func (c *StageCounts) add(r *StageRun) {
	c.Requests++
	c.LeftOut += r.LeftOut
	c.NotBegun += r.NotBegun
	for o, n := range r.Rows {
		c.Rows[o] += n
	}
	if r.NotBegun > 0 || r.Rows.Answered() == 0 {
		return
	}
	c.Begun++
	c.Took += r.Took
	c.Waited += r.Waited
	if r.Whole > 0 {
		c.Share += r.Took.Seconds() / r.Whole.Seconds()
	}
	c.buckets[bucketOf(int64(r.Took), lowestNanos)]++
}

func (c *StageCounts) sum(o *StageCounts) {
	c.Requests += o.Requests
	c.LeftOut += o.LeftOut
	c.NotBegun += o.NotBegun
	for i, n := range o.Rows {
		c.Rows[i] += n
	}
	c.Begun += o.Begun
	c.Took += o.Took
	c.Waited += o.Waited
	c.Share += o.Share
	for i, n := range o.buckets {
		c.buckets[i] += n
	}
}

// Within returns the time within which that share of the requests that had rows there were done
// with the stage, to a factor of two; 0 if there were none.
func (c *StageCounts) Within(share float64) time.Duration {
	rank := share * float64(c.Begun)
	for i, n := range c.buckets {
		if rank -= float64(n); n > 0 && rank <= 0 {
			return lowestNanos << i
		}
	}
	return 0
}

// Ran counts a request that is done with the stage.
func (s *Stage) Ran(r *StageRun) {
	slot := time.Now().UnixNano() / int64(recentSpan)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.add(r)
	now := &s.recent[slot%recentSlots]
	if now.slot != slot {
		*now = recentCounts{slot: slot}
	}
	now.add(r)
}

// Counts returns the sums since the stage is known, and those of about the last minute.
func (s *Stage) Counts() (all, recent StageCounts) {
	slot := time.Now().UnixNano() / int64(recentSpan)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.recent {
		if s.recent[i].slot > slot-recentSlots {
			recent.sum(&s.recent[i].StageCounts)
		}
	}
	return s.all, recent
}

// Stages sets which stages a pipeline has, and returns the counts of each. Those of the same name
// as before go on; those of others end. Stages of models that share their series have none.
func (m *Model) Stages(names ...string) []*Stage {
	m.stagesMu.Lock()
	defer m.stagesMu.Unlock()
	list := make([]*Stage, len(names))
	for i, name := range names {
		if at := slices.IndexFunc(m.stages, func(s *Stage) bool { return s.name == name }); at >= 0 {
			list[i] = m.stages[at]
		} else {
			list[i] = &Stage{name: name}
		}
	}
	if m.id != overflowID {
		m.stages = list
	}
	return list
}

// Stage returns the counts of a stage; nil if the pipeline has none of that name.
func (m *Model) Stage(name string) *Stage {
	m.stagesMu.Lock()
	defer m.stagesMu.Unlock()
	if at := slices.IndexFunc(m.stages, func(s *Stage) bool { return s.name == name }); at >= 0 {
		return m.stages[at]
	}
	return nil
}

// collectStages sends the counts of the stages that had requests.
func (m *Model) collectStages(out collection) {
	m.stagesMu.Lock()
	stages := m.stages
	m.stagesMu.Unlock()
	for _, s := range stages {
		c, _ := s.Counts()
		if c.Requests == 0 {
			continue
		}
		for o, n := range c.Rows {
			if o == int(OK) || n > 0 {
				out.counter(stageRowsDesc, n, m.name, s.name, Outcome(o).String())
			}
		}
		out.counter(stageLeftOutDesc, c.LeftOut, m.name, s.name)
		out.counter(stageNotBegunDesc, c.NotBegun, m.name, s.name)
		out <- prometheus.MustNewConstMetric(stageWaitDesc, prometheus.CounterValue, c.Waited.Seconds(), m.name, s.name)
		bounds, count := make(map[float64]uint64, histogramBuckets-1), uint64(0)
		for i, n := range c.buckets[:histogramBuckets-1] {
			count += n
			bounds[float64(int64(lowestNanos)<<i)/second] = count
		}
		out <- prometheus.MustNewConstHistogram(stageDurationDesc, c.Begun, c.Took.Seconds(), bounds, m.name, s.name)
	}
}
