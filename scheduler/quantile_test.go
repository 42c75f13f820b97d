package scheduler

import (
	"math/rand/v2"
	"testing"
)

// TestRegression: from batches on a line, sizes for a time are those of the line; with noise they
// are smaller, by its upper quantile; and old batches are forgotten.
func TestRegression(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	feed := func(s *regression, a, b int64, noise float64) {
		for range 500 {
			n := 1 + rng.IntN(64)
			s.learn(n, n, int64(float64(a+b*int64(n))*(1+noise*rng.NormFloat64())))
		}
	}
	exact, noisy := &regression{}, &regression{}
	if n := exact.size(1e6); n < 1<<20 {
		t.Errorf("with nothing known a batch may have %d rows, want no bound", n)
	}
	feed(exact, 5*ms, ms/2, 0)
	feed(noisy, 5*ms, ms/2, 0.05)
	for _, c := range []struct{ left, want int64 }{{10 * ms, 10}, {20 * ms, 30}, {30 * ms, 50}} {
		if n := exact.size(float64(c.left)); n < int(c.want)-1 || n > int(c.want)+1 {
			t.Errorf("with %d ms left a batch may have %d rows, want %d", c.left/ms, n, c.want)
		}
		if n := noisy.size(float64(c.left)); n >= int(c.want)-1 || n < int(c.want)-15 {
			t.Errorf("with noise and %d ms left a batch may have %d rows, want some less than %d", c.left/ms, n, c.want)
		}
	}
	feed(exact, 10*ms, ms, 0)
	if n := exact.size(float64(30 * ms)); n < 19 || n > 21 {
		t.Errorf("after a change a batch may have %d rows in 30 ms, want 20", n)
	}
}
