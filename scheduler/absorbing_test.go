//go:build !race && !invariants

// A simulation runs on one goroutine, where the race detector finds nothing and costs a factor of
// ten, and has no buffers to poison.

package scheduler_test

import (
	"cmp"
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/sim"
	"github.com/shivad/shivad/shiva/budgettest"
)

var (
	beliefs  = flag.Int("beliefs", 0, "random profiles for each kind of container; 0: a few")
	allKinds = flag.Bool("all", false, "run TestNoAbsorbingState for all kinds of containers, not only a few")
)

const (
	learnWithin = 5 * time.Second // of heavy load, or after a change; from then on
	// Shares of the oracle's goodput that must be served: on average over the profiles,
	learnShare  = 0.95
	learnLuck   = 0.9 // ... by all but one profile in fifty,
	learnFloor  = 0.6 // ... by each profile, during
	learnLength = 10 * time.Second

	learnBriefly = 4 * time.Second // where a change is tried
)

// learnCells returns the cells of each kind of container: loads above its capacity, and its
// faults.
func learnCells(p sim.Profile, length time.Duration) []sim.Cell {
	var all []sim.Cell
	for _, load := range []float64{1.2, 1.5, 2, 2.5} {
		all = append(all, sim.Cell{Profile: p, Load: load})
	}
	all = append(all, p.Faulty()...)
	for i := range all {
		c := &all[i]
		c.Light, c.Warm, c.Length, c.Seed = 2*time.Second, learnWithin, length, uint64(i)
		if p.Name == "doubling half-way" {
			c.Warm += 2*learnWithin + c.Length - c.Light
		}
	}
	return all
}

// TestNoAbsorbingState: from any profile, and after any light load, a container under heavy load
// and with any fault reaches nearly the oracle's goodput within seconds. The share of one profile
// over ten seconds varies by some hundredths, as the oracle's does. All kinds take longer than the
// other tests of this package together: go test takes one of them, make soak all (-all). The long
// form is go test ./scheduler -run TestNoAbsorbingState -all -beliefs 1112, ten thousand profiles
// in all.
func TestNoAbsorbingState(t *testing.T) {
	for k, p := range sim.Kinds() {
		if !*allKinds && p.Name != "linear" {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			many, length := *beliefs, learnLength
			if many == 0 && *allKinds {
				many = 5
			} else if many == 0 {
				many, length = 2, learnBriefly
			}
			cells := learnCells(p, length)
			// Five are of every other cell.
			turn := func(i int) int { return (2*i + i/5 + k) % len(cells) }
			oracle := make([]float64, len(cells))
			for i := range min(many, len(cells)) {
				oracle[turn(i)] = sim.Oracle(cells[turn(i)].ForOracle()).Share()
			}
			var mu sync.Mutex
			worst, below, unlucky, sum := 2.0, 0, 0, 0.0
			work := make(chan int)
			var wg sync.WaitGroup
			for range max(1, runtime.GOMAXPROCS(0)/2) {
				wg.Go(func() {
					for i := range work {
						c := cells[turn(i)]
						c.Replica = func(r *scheduler.Replica) {
							scheduler.Believe(r, rand.New(rand.NewPCG(uint64(i), 18)))
						}
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
			for i := range many {
				work <- i
			}
			close(work)
			wg.Wait()
			mean := sum / float64(many)
			t.Logf("%s, %d profiles: %.3f of the oracle in the mean, %.3f in the worst case, %d below %g", p.Name, many,
				mean, worst, below, learnShare)
			if unlucky > (many+49)/50 {
				t.Errorf("%s: %d of %d profiles have less than %g of the oracle", p.Name, unlucky, many, learnLuck)
			}
			if mean < learnShare {
				t.Errorf("%s: %.3f of the oracle in the mean, want %g", p.Name, mean, learnShare)
			}
		})
	}
}

// TestNoAbsorbingStateShared: the same for servers that share a container, each with different
// beliefs about it: within half a minute, which is how long many measurements of a size count while
// that size is not executed, they answer as many rows as without such beliefs. The long form is go
// test ./scheduler -run TestNoAbsorbingStateShared -beliefs 200.
func TestNoAbsorbingStateShared(t *testing.T) {
	sum, many := 0.0, cmp.Or(*beliefs, budgettest.Rounds(5))
	for i := range many {
		rng := rand.New(rand.NewPCG(uint64(i), 19))
		f := sim.Fleet{Servers: 2 + 2*(i%2), Grants: true, Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond,
			Serve: 20 * time.Microsecond}
		f.Cell = sim.Cell{Profile: sim.Profiles()[1], Load: []float64{1.2, 2, 1.5}[i%3], Light: 2 * time.Second,
			Warm: 40 * time.Second, Length: learnLength / 2, Seed: uint64(i)}
		good := func() float64 {
			r, err := sim.RunFleet(f, sim.Strategies()[0])
			if err != nil {
				t.Fatal(err)
			}
			return float64(r.Good)
		}
		sound := good()
		f.Replica = func(r *scheduler.Replica) { scheduler.Believe(r, rng) }
		of := good() / sound
		if sum += of; of < learnLuck {
			t.Errorf("profiles %d of %d servers at %v: %.3f of what they answer without", i, f.Servers, f.Load, of)
		}
	}
	if mean := sum / float64(many); mean < learnShare {
		t.Errorf("%d profiles: %.3f of what they answer without in the mean, want %g", many, mean, learnShare)
	}
}
