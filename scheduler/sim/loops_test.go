package sim

import (
	"runtime"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
)

// TestLoops: clients that ask again on each answer get their share of the possible rate. Open loops
// are as late as without the rule; beside such clients a fifth later at most, and only where these
// gain more.
func TestLoops(t *testing.T) {
	budgettest.OneGoroutine(t)
	for seed := uint64(1); seed <= 3; seed++ {
		all, err := RunLoopCells(t.Context(), LoopCells(5*time.Second, 10*time.Second, seed), runtime.GOMAXPROCS(0))
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			for _, b := range o.Broken() {
				t.Errorf("seed %d: %s", seed, b)
			}
		}
	}
}

func run(t *testing.T, l Loops, together bool) *LoopsResult {
	t.Helper()
	l.Warm, l.Length, l.Seed = 5*time.Second, 10*time.Second, 1
	r, err := RunLoops(l, scheduler.ModelConfig{Together: &together})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
