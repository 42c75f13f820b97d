package scheduler

import (
	"math/rand/v2"
	"testing"
)

// TestOverhead: the overhead of dispatching is what batches to an idle replica take longer than those behind others,
// as far as that is certain, and within bounds.
func TestOverhead(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const typical, shortest = 20 * ms, float64(20 * ms)
	for _, c := range []struct {
		name        string
		batches     int
		alone       int64   // what a batch to an idle replica takes longer
		noise       float64 // of executions
		least, most int64
	}{
		{"nothing known", 0, ms, 0, minOverhead, minOverhead},
		{"hardly known", minResiduals - 1, ms, 0, minOverhead, minOverhead},
		{"exact", 50, ms, 0, ms * 99 / 100, ms},
		{"noisy", 500, 2 * ms, 0.05, ms, 2 * ms},
		{"nothing but noise", 500, 0, 0.05, minOverhead, ms / 2},
		{"less than a timer can tell", 500, minOverhead / 2, 0, minOverhead, minOverhead},
		{"absurd", 500, 15 * ms, 0, maxOverhead, maxOverhead},
	} {
		var o overhead
		for range c.batches {
			exec := func() int64 { return int64(float64(typical) * (1 + c.noise*rng.NormFloat64())) }
			o.alone.observe(exec()+c.alone, typical)
			o.behind.observe(exec(), typical)
		}
		if got := o.value(shortest); got < c.least || got > c.most {
			t.Errorf("%s: %d ns, want %d to %d", c.name, got, c.least, c.most)
		}
		if got := o.value(float64(minOverhead)); got > minOverhead/4 {
			t.Errorf("%s: %d ns of executions of %d", c.name, got, minOverhead)
		}
	}
	var o overhead
	for range 200 {
		o.alone.observe(ms, 0) // to a replica that nothing was known of
	}
	if o.alone.weight > 0 {
		t.Error("a batch whose time was not predicted was taken in")
	}
}
