package sim

import (
	"flag"
	"slices"
	"testing"
	"time"
)

var allFaults = flag.Bool("all", false, "run TestFaults for all kinds of containers, not only a few")

// OfFaulty is the share of the oracle's goodput that is reached within 5 s of virtual time whatever is wrong. The oracle knows
// what it is.
const OfFaulty = 0.95

// TestFaults: no fault of a container, and no row, takes a model down for good: light load, then a load that needs the best
// sizes, of which the first 5 s do not count.
func TestFaults(t *testing.T) {
	for _, f := range []struct {
		Fault
		load     float64
		replicas int
	}{
		// To find a bad row takes a batch for each doubling of those it came with, for which there must be time.
		{Fault{Name: "poison", Poison: 0.01}, 0.05, 1},
		{Fault{Name: "above 8", Above: 8}, 0.8, 1},
		{Fault{Name: "above 8, overload", Above: 8}, 1.5, 1},
		{Fault{Name: "hang", Hang: true}, 0.8, 2},
		{Fault{Name: "hang of the only one", Hang: true}, 0.8, 1},
		{Fault{Name: "stop", Stop: 2 * time.Second}, 0.8, 2},
	} {
		for _, p := range Kinds() {
			if !*allFaults && !slices.Contains([]string{"linear", "steps of 16 rows"}, p.Name) || race && p.Name != "linear" {
				continue
			}
			p.Replicas = f.replicas
			c := Cell{Profile: p, Load: f.load, Fault: &f.Fault, Light: time.Second, Warm: 5 * time.Second, Length: 3 * time.Second, Seed: 5}
			c.Load *= c.Told().Capacity() / c.Capacity()
			t.Run(c.String(), func(t *testing.T) {
				t.Parallel()
				r, err := Run(c, Strategies()[0])
				if err != nil {
					t.Fatal(err)
				}
				told := c.Told()
				told.Load = f.load
				o := Oracle(told)
				t.Logf("%.3f of %d in time, the oracle %.3f; mean batch %.1f, the oracle's %.1f", r.Share(), r.Offered, o.Share(), r.MeanBatch, o.MeanBatch)
				if r.Share() < OfFaulty*o.Share() {
					t.Errorf("%s: %.3f in time, the oracle %.3f", c, r.Share(), o.Share())
				}
			})
		}
	}
}
