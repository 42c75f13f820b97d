//go:build !race && !invariants

// A simulation is one goroutine, in which the race detector finds nothing and is ten times as
// slow, and it has no buffers to poison.

package scheduler_test

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/sim"
)

var beliefs = flag.Int("beliefs", 5, "random profiles that each kind of container is met with")

const (
	learnWithin = 5 * time.Second // of heavy load, or of what has changed since: then
	learnShare  = 0.95            // of the oracle's goodput is served in the mean of the profiles, and
	learnLuck   = 0.9             // with all but one in fifty, and
	learnFloor  = 0.6             // with each of them, for
	learnLength = 10 * time.Second
)

// learnCells are what each kind of container is met with in turn: loads beyond what it can do, and
// its faults.
func learnCells(p sim.Profile) []sim.Cell {
	var all []sim.Cell
	for _, load := range []float64{1.2, 1.5, 2, 2.5} {
		all = append(all, sim.Cell{Profile: p, Load: load})
	}
	all = append(all, p.Faulty()...)
	for i := range all {
		c := &all[i]
		c.Light, c.Warm, c.Length, c.Seed = 2*time.Second, learnWithin, learnLength, uint64(i)
		if p.Name == "doubling half-way" {
			c.Warm += 2*learnWithin + c.Length - c.Light
		}
	}
	return all
}

// TestNoAbsorbingState: whatever a profile believes, and whatever light load has taught it, under
// heavy load and with whatever fault the container is served as by the oracle within seconds. One
// profile's share of ten seconds is a matter of luck by some hundredths, as the oracle's is. The
// whole of it is go test ./scheduler -run TestNoAbsorbingState -beliefs 1112, ten thousand in all.
func TestNoAbsorbingState(t *testing.T) {
	for k, p := range sim.Kinds() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			cells := learnCells(p)
			turn := func(i int) int { return (2*i + i/5 + k) % len(cells) } // five are of every other cell
			oracle := make([]float64, len(cells))
			for i := range min(*beliefs, len(cells)) {
				oracle[turn(i)] = sim.Oracle(cells[turn(i)].Told()).Share()
			}
			var mu sync.Mutex
			worst, below, unlucky, sum := 2.0, 0, 0, 0.0
			work := make(chan int)
			var wg sync.WaitGroup
			for range max(1, runtime.GOMAXPROCS(0)/2) {
				wg.Go(func() {
					for i := range work {
						c := cells[turn(i)]
						c.Replica = func(r *scheduler.Replica) { scheduler.Believe(r, rand.New(rand.NewPCG(uint64(i), 18))) }
						r, err := sim.Run(c, sim.Strategies()[0])
						if err != nil {
							t.Error(err)
							continue
						}
						of := r.Share() / oracle[turn(i)]
						mu.Lock()
						worst, sum = min(worst, of), sum+of
						if of < learnShare {
							below++
						}
						if of < learnLuck {
							unlucky++
							t.Logf("%s, profile %d: %.3f of the oracle", c, i, of)
						}
						if of < learnFloor {
							t.Errorf("%s, profile %d: %.3f of the oracle, want %g", c, i, of, learnFloor)
						}
						mu.Unlock()
					}
				})
			}
			for i := range *beliefs {
				work <- i
			}
			close(work)
			wg.Wait()
			mean := sum / float64(*beliefs)
			t.Logf("%s, %d profiles: %.3f of the oracle in the mean, %.3f in the worst case, %d below %g", p.Name, *beliefs, mean, worst, below, learnShare)
			if unlucky > (*beliefs+49)/50 {
				t.Errorf("%s: %d of %d profiles have less than %g of the oracle", p.Name, unlucky, *beliefs, learnLuck)
			}
			if mean < learnShare {
				t.Errorf("%s: %.3f of the oracle in the mean, want %g", p.Name, mean, learnShare)
			}
		})
	}
}
