package sim

import (
	"slices"
	"time"
)

// A Result is what came of a cell's counted rows.
type Result struct {
	Offered   int           // rows
	Good      int           // of them, answered by their deadlines
	MeanBatch float64       // rows
	P50, P99  time.Duration // latency of the good ones

	cell    Cell
	batches int
	rows    int
	latency []time.Duration
}

// Share is the good rows as a share of what was offered.
func (r *Result) Share() float64 { return float64(r.Good) / float64(max(r.Offered, 1)) }

// Missed is the rest.
func (r *Result) Missed() float64 { return 1 - r.Share() }

// OfCapacity is the goodput as a share of the profile's capacity.
func (r *Result) OfCapacity() float64 { return r.Share() * r.cell.Load }

// row counts one that was answered, or given up (good is false).
func (r *Result) row(a arrival, at time.Duration, good bool) {
	if a.at < r.cell.Light+r.cell.Warm {
		return
	}
	r.Offered++
	if good && at <= a.deadline {
		r.Good++
		r.latency = append(r.latency, at-a.at)
	}
}

func (r *Result) batch(at time.Duration, rows int) {
	if at >= r.cell.Light+r.cell.Warm {
		r.batches++
		r.rows += rows
	}
}

// done derives what is derived.
func (r *Result) done() *Result {
	slices.Sort(r.latency)
	if n := len(r.latency); n > 0 {
		r.P50, r.P99 = r.latency[n/2], r.latency[n*99/100]
	}
	r.MeanBatch = float64(r.rows) / float64(max(r.batches, 1))
	r.latency = nil
	return r
}
