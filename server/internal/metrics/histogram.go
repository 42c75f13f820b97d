package metrics

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A histogram counts values in buckets whose bounds double: bucket i holds values up to lowest<<i,
// the last one all higher values. Finding the bucket takes one instruction, and an observation two
// atomic additions.
type histogram struct {
	sum     atomic.Int64
	buckets [histogramBuckets]atomic.Uint64
}

const histogramBuckets = 25

// The lowest bound for durations is 2^13 ns = 8.2 µs, so the highest is 2^36 ns = 69 s. For rows
// the bounds are 1 to 2^23.
const (
	lowestNanos = 1 << 13
	lowestRows  = 1
)

func (h *histogram) observe(v, lowest int64) {
	h.buckets[bucketOf(v, lowest)].Add(1)
	h.sum.Add(max(v, 0))
}

func bucketOf(v, lowest int64) int {
	i := bits.Len64(uint64(max(v-1, 0) / lowest)) // lowest is a constant power of two: a shift
	return min(i, histogramBuckets-1)
}

func (h *histogram) observeDuration(d time.Duration) { h.observe(int64(d), lowestNanos) }

func (h *histogram) count() (n uint64) {
	for i := range h.buckets {
		n += h.buckets[i].Load()
	}
	return n
}

// metric returns the histogram for Prometheus, with bounds and sum divided by unit.
func (h *histogram) metric(desc *prometheus.Desc, lowest int64, unit float64, labels ...string) prometheus.Metric {
	bounds := make(map[float64]uint64, len(h.buckets)-1)
	var count uint64
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(h.buckets)-1 { // the last one is +Inf, which the library adds
			bounds[float64(lowest<<i)/unit] = count
		}
	}
	return prometheus.MustNewConstHistogram(desc, count, float64(h.sum.Load())/unit, bounds, labels...)
}
