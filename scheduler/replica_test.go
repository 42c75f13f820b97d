package scheduler

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestOverhead: the dispatch overhead is the difference between batches to an idle replica and
// batches behind others, as far as that exceeds the noise, and within bounds.
func TestOverhead(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	const typical, shortest = 20 * ms, float64(20 * ms)
	for _, c := range []struct {
		name        string
		batches     int
		alone       int64   // additional time of a batch to an idle replica
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
		o.alone.observe(ms, 0) // to a replica without measurements
	}
	if o.alone.weight > 0 {
		t.Error("a batch whose time was not predicted was taken in")
	}
}

// TestHoldOff: three failures in a row hold a replica off, longer with each further one, up to a
// limit. A lack of memory and a wrong input do not count. (testdata/black_hole.txt is the story.)
func TestHoldOff(t *testing.T) {
	r := &Replica{free: 7}
	for range toleratedFailures {
		r.judge(fmt.Errorf("%w: no memory for the answer", ErrOverloaded))
		r.judge(fmt.Errorf("%w: not a number", ErrInvalidInput))
	}
	if !r.sound() {
		t.Error("a replica is blamed for what is not its fault")
	}
	for i := range toleratedFailures {
		if !r.sound() {
			t.Errorf("held off after %d failures", i)
		}
		r.judge(errors.New("out of memory"))
	}
	for _, want := range []int64{100 * ms, 200 * ms, 400 * ms} {
		if r.sound() || r.heldOff() != 7+want {
			t.Errorf("after %d failures sound is %t and it is held off for %d, want %d", r.failures, r.sound(),
				r.heldOff()-7, want)
		}
		r.judge(errors.New("out of memory"))
	}
	r.failures = math.MaxInt32
	if got := r.heldOff() - 7; got != maxHoldOff {
		t.Errorf("held off for %d at the most, want %d", got, maxHoldOff)
	}
	if r.judge(nil); !r.sound() {
		t.Error("a good answer does not make good")
	}
}
