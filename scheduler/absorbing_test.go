//go:build !race

// A simulation is one goroutine, in which the race detector finds nothing and is ten times as slow.

package scheduler_test

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/sim"
	"github.com/shivad/shivad/scheduler"
)

var beliefs = flag.Int("beliefs", 20, "random profiles that each kind of container is met with")

const (
	learnWithin = 5 * time.Second // of heavy load: then
	learnShare  = 0.95            // of the oracle's goodput is served in the mean of the profiles, and
	learnFloor  = 0.8             // with each of them, for
	learnLength = 2 * time.Second // which is short enough for luck to count
	learnTraces = 4               // of arrivals and noise, which the profiles share
)

// TestNoAbsorbingState: whatever a profile believes, and whatever light load has taught it, under heavy load the
// container is served as by the oracle within seconds. The whole of it is go test ./scheduler -run TestNoAbsorbingState
// -beliefs 1112,
// ten thousand in all.
func TestNoAbsorbingState(t *testing.T) {
	for _, p := range sim.Kinds() {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			cells := make([]sim.Cell, learnTraces)
			oracle := make([]float64, learnTraces)
			for i := range cells {
				cells[i] = sim.Cell{
					Profile: p, Load: []float64{1.2, 1.5, 2, 2.5}[i], Light: 2 * time.Second, Warm: learnWithin, Length: learnLength, Seed: uint64(i),
				}
				oracle[i] = sim.Oracle(cells[i]).Share()
			}
			var mu sync.Mutex
			worst, below, sum := 2.0, 0, 0.0
			work := make(chan int)
			var wg sync.WaitGroup
			for range max(1, runtime.GOMAXPROCS(0)/2) {
				wg.Go(func() {
					for i := range work {
						c := cells[i%learnTraces]
						c.Replica = func(r *scheduler.Replica) { scheduler.Believe(r, rand.New(rand.NewPCG(uint64(i), 18))) }
						r, err := sim.Run(c, sim.Strategies()[0])
						if err != nil {
							t.Error(err)
							continue
						}
						of := r.Share() / oracle[i%learnTraces]
						mu.Lock()
						worst, sum = min(worst, of), sum+of
						if of < learnShare {
							below++
						}
						if of < learnFloor {
							t.Errorf("%s, profile %d, load %g: %.3f of the oracle, want %g", p.Name, i, c.Load, of, learnFloor)
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
			if mean < learnShare {
				t.Errorf("%s: %.3f of the oracle in the mean, want %g", p.Name, mean, learnShare)
			}
		})
	}
}
