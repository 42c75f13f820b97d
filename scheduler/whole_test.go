package scheduler_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler/schedtest"
)

// TestRequestsAreWhole: the size of a batch is one that its requests can have. A size of 15 rows
// may look a little faster than one of 16, but with requests of 8 rows it has 8.
func TestRequestsAreWhole(t *testing.T) {
	for _, rows := range []int{1, 5, 8} {
		for seed := range uint64(4) {
			rng := rand.New(rand.NewPCG(seed, 1))
			noisy := func(rows int) time.Duration {
				return 17*time.Millisecond + time.Duration(rows)*30*time.Microsecond +
					time.Duration(rng.ExpFloat64()*float64(time.Millisecond))
			}
			answered := loops(t, rows, apart(4, 9*time.Millisecond), 2*time.Second, 10*time.Second,
				&preparer{prepare: schedtest.Linear(0, 0), exec: noisy})
			rate := float64(len(answered)) / 10
			t.Logf("requests of %d rows, seed %d: %.1f answers/s", rows, seed, rate)
			if rate < 195 { // all four in one batch, in 18 to 20 ms
				t.Errorf("requests of %d rows, seed %d: %.1f answers/s, want 195", rows, seed, rate)
			}
		}
	}
}
