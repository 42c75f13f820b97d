//go:build !race && !invariants

package scheduler_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/sim"
)

// fromBelief runs loops whose seed says what their replicas believe to begin with.
func fromBelief(t *testing.T, l sim.Loops, seed int) *sim.LoopsResult {
	l.Seed = uint64(seed)
	l.Replica = func(r *scheduler.Replica) { scheduler.Believe(r, rand.New(rand.NewPCG(l.Seed, 18))) }
	r, err := sim.RunLoops(l, scheduler.ModelConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestCallersFromAnyBelief: whatever a profile believes, clients that ask again on each answer come
// to meet: two and three of them always, and larger groups in the mean, within half a minute. What
// larger groups lack are profiles that have not been corrected yet: a trial of 64 rows that take
// 120 ms comes every few seconds. All kinds of containers are in make soak (-all).
func TestCallersFromAnyBelief(t *testing.T) {
	const think = 300 * time.Microsecond
	many := max(*beliefs, 4)
	for _, p := range sim.Kinds() {
		if !*allKinds && p.Name != "linear" && p.Name != "constant 120 ms" {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			for _, clients := range []int{1, 2, 3, 8, 32, 64} {
				l := sim.Loops{Profile: p, Clients: clients, Warm: 30 * time.Second, Length: 10 * time.Second}
				sum := 0.0
				for i := range many {
					of := fromBelief(t, l, i).Closed.Rate / p.Together(clients, think, 0.9)
					if sum += of; clients <= 3 && of < 0.9 {
						t.Errorf("%d clients, belief %d: %.3f of the possible rate, want 0.9", clients, i, of)
					}
				}
				if mean := sum / float64(many); mean < 0.8 {
					t.Errorf("%d clients: %.3f of the possible rate in the mean, want 0.8", clients, mean)
				} else {
					t.Logf("%d clients: %.3f", clients, mean)
				}
			}
		})
	}
}

// TestCallersWithDeadlinesFromAnyBelief: nor does a belief keep clients apart whose deadlines are
// hardly longer than a batch of all, or than two. What would correct it is a batch that is believed
// to be late. There is always one: a trial of a size is planned as if it took as long as the
// present one (wait), rows that are late anyway are not sent alone while others are due, and
// clients whose rows would be late ask again together (startOver).
func TestCallersWithDeadlinesFromAnyBelief(t *testing.T) {
	const think = 300 * time.Microsecond
	many := max(*beliefs, 6)
	for _, p := range sim.Kinds()[:2] { // linear, constant 120 ms
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			for _, clients := range []int{2, 3, 8, 32} {
				possible := p.Together(clients, think, 0.9)
				all := time.Duration(float64(clients)/possible*float64(time.Second)) - think
				for _, batches := range []float64{1.2, 1.5, 2.5} {
					l := sim.Loops{Profile: p, Clients: clients, Warm: 60 * time.Second, Length: 10 * time.Second,
						Deadline: time.Duration(batches * float64(all))}
					for i := range many {
						if of := fromBelief(t, l, i).Closed.Rate / possible; of < 0.8 {
							t.Errorf("%d clients, deadlines of %.1f batches, belief %d: "+
								"%.3f of the possible rate, want 0.8", clients, batches, i, of)
						}
					}
				}
			}
		})
	}
}

// TestCallersOfServersFromAnyBelief: nor does any belief of servers that share a container keep
// their clients apart.
func TestCallersOfServersFromAnyBelief(t *testing.T) {
	for _, p := range sim.Kinds()[:2] { // linear, constant 120 ms
		for _, clients := range []int{2, 8} {
			for i := range max(*beliefs, 4) {
				l := sim.Loops{Profile: p, Clients: clients, Servers: 2, Delay: 50 * time.Microsecond,
					Warm: 30 * time.Second, Length: 10 * time.Second}
				if of := fromBelief(t, l, i).Closed.Rate / p.Together(clients, 500*time.Microsecond, 0.9); of < 0.9 {
					t.Errorf("%s, %d clients, belief %d: %.3f of the possible rate, want 0.9", p.Name, clients, i, of)
				}
			}
		}
	}
}

// TestCallersOfServersWithDeadlines: clients of servers that share a container have one batch, too,
// whether two batches in turn would be late or not. A server that is granted an execution in which
// none of its rows can be in time gives the grant back, and its clients start over with the
// others', for whom the round waits.
func TestCallersOfServersWithDeadlines(t *testing.T) {
	linear, constant := sim.Kinds()[0], sim.Kinds()[1]
	slow := sim.Profile{Name: "20 + 1n ms", A: 20 * time.Millisecond, B: time.Millisecond, Noise: 0.02, Replicas: 1}
	for _, c := range []struct {
		p       sim.Profile
		servers int
		batches float64 // deadline, as multiple of a batch of all
	}{
		{linear, 2, 1.3}, {linear, 2, 1.5}, {linear, 2, 1.7}, {linear, 4, 1.5}, {slow, 2, 1.2}, {slow, 2, 1.5},
		{constant, 2, 1.1}, {constant, 2, 1.3}, {constant, 2, 1.9}, {constant, 2, 2.08}, {constant, 2, 2.2},
		{constant, 2, 2.5}, {constant, 4, 2.33},
	} {
		p := c.p
		possible := p.Together(32, 500*time.Microsecond, 0.9)
		for seed := range uint64(max(*beliefs, 4)) {
			l := sim.Loops{Profile: p, Clients: 32, Servers: c.servers, Delay: 50 * time.Microsecond, Seed: seed,
				Warm: 20 * time.Second, Length: 10 * time.Second,
				Deadline: time.Duration(c.batches * 32 / p.Together(32, 0, 0.9) * float64(time.Second))}
			r, err := sim.RunLoops(l, scheduler.ModelConfig{})
			if err != nil {
				t.Fatal(err)
			}
			if of := r.Closed.Rate / possible; of < 0.95 || r.Closed.Failed > 0.01 {
				t.Errorf("%s, %d servers, deadlines of %.2f batches, seed %d: %.3f of the possible rate, want 0.95; %.3f fail",
					p.Name, c.servers, c.batches, seed, of, r.Closed.Failed)
			}
		}
	}
}
