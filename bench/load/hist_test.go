package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Every value lies in its bucket: at most its upper edge, and above that of the bucket before.
func TestBucketEdges(t *testing.T) {
	values := []int64{0, 1, 63, 64, 65, 127, 128, 129, 1000, 123_456_789, math.MaxInt64 - 1, math.MaxInt64}
	for shift := range 63 {
		values = append(values, 1<<shift-1, 1<<shift, 1<<shift+1)
	}
	for _, v := range values {
		i := bucket(v)
		if v > upper(i) || i > 0 && v <= upper(i-1) {
			t.Errorf("value %d in bucket %d, whose edges are %d and %d", v, i, upper(max(i-1, 0)), upper(i))
		}
	}
	for i := 1; i < bucket(math.MaxInt64); i++ {
		if bucket(upper(i)) != i || bucket(upper(i)+1) != i+1 {
			t.Fatalf("bucket %d: upper edge %d goes to bucket %d, the next value to %d", i, upper(i), bucket(upper(i)),
				bucket(upper(i)+1))
		}
	}
}

func TestQuantiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, half Histogram
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(math.Exp(r.NormFloat64()*2 + 11)) // around 60 µs, tail to a second
		all = append(all, d)
		if i%2 == 0 {
			h.Add(d)
		} else {
			half.Add(d)
		}
	}
	h.Merge(&half)
	slices.Sort(all)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(math.Ceil(q*float64(len(all))))-1, 0)]
		got := h.Quantile(q)
		if got < want || float64(got) > float64(want)*(1+1.0/64)+1 {
			t.Errorf("quantile %v = %v, want %v and at most 1/64 more", q, got, want)
		}
	}
	if h.Count() != 20_000 || h.Max() != all[len(all)-1] {
		t.Errorf("count %d max %v, want 20000 and %v", h.Count(), h.Max(), all[len(all)-1])
	}
}

func TestEmptyHistogram(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Mean() != 0 || h.Max() != 0 {
		t.Errorf("empty: p50 %v mean %v max %v, want 0", h.Quantile(0.5), h.Mean(), h.Max())
	}
	h.Add(-time.Second)
	if h.Count() != 1 || h.Quantile(1) != 0 {
		t.Errorf("a negative duration: count %d p100 %v, want 1 and 0", h.Count(), h.Quantile(1))
	}
}

func TestWithin(t *testing.T) {
	var h Histogram
	for i := range 100 {
		h.Add(time.Duration(i) * time.Millisecond)
	}
	for d, want := range map[time.Duration]int64{-1: 1, 0: 1, 50 * time.Millisecond: 51, time.Hour: 100} {
		if got := h.Within(d); got != want {
			t.Errorf("%d within %v, want %d", got, d, want)
		}
	}
}
