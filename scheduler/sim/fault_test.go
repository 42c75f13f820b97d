package sim

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

var allFaults = flag.Bool("all", false, "run TestFaults for all kinds of containers, not only a few")

// OfFaulty is the share of the oracle's goodput that is reached within 5 s of virtual time with
// any fault. The oracle knows the fault.
const OfFaulty = 0.95

// TestFaults: no fault of a container or of a row degrades a model permanently. Light load comes
// first, then a load that needs the best sizes, of which the first 5 s do not count.
func TestFaults(t *testing.T) {
	budgettest.OneGoroutine(t)
	few := []string{"linear", "steps of 16 rows"}
	if !budgettest.Whole() {
		few = few[:1]
	}
	for _, p := range Kinds() {
		if !*allFaults && !slices.Contains(few, p.Name) {
			continue
		}
		for _, c := range p.Faulty() {
			c.Light, c.Warm, c.Length, c.Seed = time.Second, 5*time.Second, span(2500*time.Millisecond), 5
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				r, err := Run(c, Strategies()[0])
				if err != nil {
					t.Fatal(err)
				}
				o := Oracle(c.ForOracle())
				t.Logf("%.3f of %d in time, the oracle %.3f; mean batch %.1f, the oracle's %.1f", r.Share(), r.Offered,
					o.Share(), r.MeanBatch, o.MeanBatch)
				if r.Share() < OfFaulty*o.Share() {
					t.Errorf("%s: %.3f in time, the oracle %.3f", c, r.Share(), o.Share())
				}
			})
		}
	}
}
