package sim

import (
	"slices"
	"time"
)

// A Result summarises the counted rows of a cell.
type Result struct {
	Offered   int           // rows
	Good      int           // rows answered by their deadlines
	MeanBatch float64       // rows
	P50, P99  time.Duration // latency of the good rows

	cell    Cell
	batches int
	rows    int
	latency []time.Duration
}

// Share returns the good rows as a share of the offered rows.
func (r *Result) Share() float64 { return float64(r.Good) / float64(max(r.Offered, 1)) }

// Missed returns the share of the offered rows that were not answered in time.
func (r *Result) Missed() float64 { return 1 - r.Share() }

// OfCapacity returns the goodput as a share of the profile's capacity.
func (r *Result) OfCapacity() float64 { return r.Share() * r.cell.Load }

// row counts a row that was answered, or given up (good is false). It reports whether it counts as
// answered in time.
func (r *Result) row(a arrival, at time.Duration, good bool) bool {
	if a.at < r.cell.Light+r.cell.Warm {
		return false
	}
	r.Offered++
	good = good && at <= a.deadline
	if good {
		r.Good++
		r.latency = append(r.latency, at-a.at)
	}
	return good
}

func (r *Result) batch(at time.Duration, rows int) {
	if at >= r.cell.Light+r.cell.Warm {
		r.batches++
		r.rows += rows
	}
}

// done computes the means and quantiles.
func (r *Result) done() *Result {
	slices.Sort(r.latency)
	if n := len(r.latency); n > 0 {
		r.P50, r.P99 = r.latency[n/2], r.latency[n*99/100]
	}
	r.MeanBatch = float64(r.rows) / float64(max(r.batches, 1))
	r.latency = nil
	return r
}
