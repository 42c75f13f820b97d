package metrics

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Totals are sums over the life of a model version, for clients that ask for statistics.
// Reading them is for now and then.
type Totals struct {
	Last      time.Time // a request was answered; zero: never
	Succeeded Sum       // requests with a result: from taken in to answered
	Failed    Sum       // all others
	Queued    Sum       // requests whose rows went to a container: until the first one did
	Executed  Sum       // the same: execution of the batch that the last row was in
	Batches   []BatchTotal
}

// A Sum is how often something was measured, and all of it together.
type Sum struct {
	Count uint64
	Nanos uint64
}

func (s *Sum) add(d time.Duration) {
	s.Count++
	s.Nanos += uint64(max(d, 0))
}

// A BatchTotal is the execution of all answered batches of so many rows.
type BatchTotal struct {
	Rows int
	Took Sum
}

// Totals returns the sums.
func (m *Model) Totals() Totals {
	t := &m.totals
	out := Totals{
		Succeeded: t.succeeded.load(), Failed: t.failed.load(), Executed: t.executed.load(),
		Queued: Sum{Nanos: uint64(m.queueWait.sum.Load())},
	}
	for i := range m.queueWait.buckets {
		out.Queued.Count += m.queueWait.buckets[i].Load()
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

// totals is what a model counts for Totals beside its histograms.
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

// times are sums that nobody else sees yet.
type times struct {
	succeeded, failed, executed Sum
	inTime                      uint64
}

// answered takes in how a request to a model ended, which has an SLO of so many ns; 0: none.
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

// add moves sums to what others see.
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
