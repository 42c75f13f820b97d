package metrics

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Totals are sums over the life of a model version, for clients that ask for statistics. They are
// not meant for frequent reading.
type Totals struct {
	Last      time.Time // when a request was last answered; zero: never
	Succeeded Sum       // requests with a result: from arrival to answer
	Failed    Sum       // all others
	Queued    Sum       // requests with executed rows: until the first row was sent
	Executed  Sum       // the same requests: execution of the batch with the last row
	Batches   []BatchTotal
}

// A Sum records how often something was measured, and the sum of the values.
type Sum struct {
	Count uint64
	Nanos uint64
}

func (s *Sum) add(d time.Duration) {
	s.Count++
	s.Nanos += uint64(max(d, 0))
}

// A BatchTotal sums the execution times of all answered batches with that many rows.
type BatchTotal struct {
	Rows int
	Took Sum
}

// Totals returns the sums.
func (m *Model) Totals() Totals {
	t := &m.totals
	out := Totals{
		Succeeded: t.succeeded.load(), Failed: t.failed.load(), Executed: t.executed.load(),
		Queued: Sum{Nanos: uint64(m.queueWait.sum.Load()), Count: m.queueWait.count()},
	}
	if ns := t.last.Load(); ns > 0 {
		out.Last = time.Unix(0, ns)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for rows, took := range t.batches {
		out.Batches = append(out.Batches, BatchTotal{rows, *took})
	}
	slices.SortFunc(out.Batches, func(a, b BatchTotal) int { return cmp.Compare(a.Rows, b.Rows) })
	return out
}

// totals holds what Totals needs besides the model's histograms.
type totals struct {
	last                        atomic.Int64 // ns since 1970
	succeeded, failed, executed atomicSum
	inTime                      atomic.Uint64

	mu      sync.Mutex
	batches map[int]*Sum // by rows; a batch is rare enough for a lock
}

type atomicSum struct{ count, nanos atomic.Uint64 }

func (s *atomicSum) load() Sum { return Sum{s.count.Load(), s.nanos.Load()} }

func (s *atomicSum) add(more Sum) {
	if more.Count > 0 {
		s.count.Add(more.Count)
		s.nanos.Add(more.Nanos)
	}
}

// times are the sums of a Tally.
type times struct {
	succeeded, failed, executed Sum
	inTime                      uint64
}

// answered adds a request with that outcome; slo is the model's SLO in ns, or 0.
func (t *times) answered(o Outcome, took time.Duration, slo int64) {
	switch o {
	case OK:
		if slo == 0 || int64(took) <= slo {
			t.inTime++
		}
		t.succeeded.add(took)
	case Default:
		t.succeeded.add(took)
	default:
		t.failed.add(took)
	}
}

// add adds the sums of a Tally.
func (t *totals) add(more *times) {
	t.succeeded.add(more.succeeded)
	t.failed.add(more.failed)
	t.executed.add(more.executed)
	if more.inTime > 0 {
		t.inTime.Add(more.inTime)
	}
	*more = times{}
	t.last.Store(time.Now().UnixNano())
}

// batch counts the execution of an answered batch.
func (t *totals) batch(rows int, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.batches[rows]
	if s == nil {
		if t.batches == nil {
			t.batches = make(map[int]*Sum)
		}
		s = new(Sum)
		t.batches[rows] = s
	}
	s.add(took)
}
