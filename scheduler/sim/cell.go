package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
)

// A Profile is the timing of a model on its replicas.
type Profile struct {
	Name      string
	A, B      time.Duration // mean time of a batch of n rows: A + B·n
	Noise     float64       // relative standard deviation of that, normal
	Kind                    // further properties of its times
	SLO       time.Duration // deadline of a row after its arrival
	Objective time.Duration // of the model's configuration; 0: the longest SLO of the cell
	Replicas  int

	Concurrency int // batches that a replica executes at once; 0: one
}

// Profiles returns the models for which the promises hold.
func Profiles() []Profile {
	const ms = time.Millisecond
	return []Profile{
		{Name: "5 ms + 0.05 ms n, 20 ms", A: 5 * ms, B: ms / 20, Noise: 0.10, SLO: 20 * ms, Replicas: 1},
		{Name: "5 ms + 0.5 ms n, 50 ms", A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 50 * ms, Replicas: 1},
		{Name: "0.5 ms + 0.2 ms n, 20 ms", A: ms / 2, B: ms / 5, Noise: 0.10, SLO: 20 * ms, Replicas: 1},
		{Name: "5 ms + 0.5 ms n, 30 ms, 4 replicas", A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 30 * ms, Replicas: 4},
	}
}

// Capacity returns the rate with executions of half the SLO, in rows per second: the rate that a
// replica sustains when every row waits for at most one batch before its own. Batches have at most
// [MaxBatch] rows. For a kind that is not linear it is the best rate of the sizes that take at most
// half the SLO, at the initial pace.
func (p Profile) Capacity() float64 {
	if p.Curve == nil && p.B > 0 && p.Chance == 0 {
		rows := min(float64(p.SLO/2-p.A)/float64(p.B), MaxBatch)
		return float64(p.Replicas) * rows / (p.A + time.Duration(rows*float64(p.B))).Seconds()
	}
	best := 0.0
	for n := 1; n <= MaxBatch; n++ {
		if base := p.base(n); base <= p.SLO/2 || n == 1 {
			best = max(best, float64(n)/p.mean(float64(base)))
		}
	}
	return float64(p.Replicas) * best * 1e9
}

// MaxBatch is the largest batch of all strategies, in rows: the scheduler's default.
const MaxBatch = 128

// A Cell is one experiment: replicas of a profile and a load.
type Cell struct {
	Profile
	Load    float64 // offered, as a share of the capacity
	Bursts  bool    // on and off for 200 ms each, with 1.8 and 0.2 times the mean; else Poisson
	Mixed   bool    // deadlines are 0.5, 1 or 2 times the SLO, a third each; else the SLO
	Sources int     // connections among which the rows are spread at random; 0: one

	Fault *Fault // nil: no fault

	Light        time.Duration // light load at the beginning (a hundredth), not counted
	Warm, Length time.Duration // full load that is not counted, and that is counted
	Seed         uint64

	// Replica is called with each replica before the load, for tests that change its profile.
	Replica func(*scheduler.Replica)
}

const (
	burstHalf = 200 * time.Millisecond
	burstOn   = 1.8
	burstOff  = 0.2
	lightLoad = 0.01
)

func (c Cell) String() string {
	arrivals, deadlines := "poisson", "one"
	if c.Bursts {
		arrivals = "bursts"
	}
	if c.Mixed {
		deadlines = "mixed"
	}
	s := fmt.Sprintf("profile=%s/arrivals=%s/slo=%s/load=%.2f", c.Name, arrivals, deadlines, c.Load)
	if c.Fault != nil {
		s += "/fault=" + c.Fault.Name
	}
	return s
}

// slos returns the SLOs of rows, which are equally likely.
func (c Cell) slos() []time.Duration {
	if c.Mixed {
		return []time.Duration{c.SLO / 2, c.SLO, 2 * c.SLO}
	}
	return []time.Duration{c.SLO}
}

func (c Cell) longest() time.Duration { return slices.Max(c.slos()) }

// An arrival is one row: when it arrives and when it is due, since the start.
type arrival struct {
	at, deadline time.Duration
}

// arrivals returns all rows of the cell, in order.
func (c Cell) arrivals() []arrival {
	rng := rand.New(rand.NewPCG(c.Seed, 1))
	mean := 1e9 / (c.Capacity() * c.Load)
	all := make([]arrival, 0, int(float64(c.Warm+c.Length)/mean*1.1))
	slos := c.slos()
	for at := time.Duration(0); ; {
		// Bursts run the clock at a different speed in each half: a gap that reaches into the
		// next half is shortened or stretched there.
		left := mean * rng.ExpFloat64()
		if at < c.Light {
			// A gap that reaches into the full load ends where that begins: one row more or less.
			left = min(left*c.Load/lightLoad, float64(c.Light-at)+1)
		}
		for c.Bursts {
			speed := burstOn
			if at/burstHalf%2 == 1 {
				speed = burstOff
			}
			rest := (at/burstHalf+1)*burstHalf - at
			if left/speed < float64(rest) {
				left /= speed
				break
			}
			left -= float64(rest) * speed
			at += rest
		}
		at += time.Duration(left)
		if at > c.end() {
			return all
		}
		all = append(all, arrival{at, at + slos[rng.IntN(len(slos))]})
	}
}

// end is when the last row arrives.
func (c Cell) end() time.Duration { return c.Light + c.Warm + c.Length }

// at is the time of an undisturbed batch that begins at the given time.
func (c Cell) at(rows int, at time.Duration) float64 {
	base := float64(c.base(rows))
	if c.Pace != nil {
		base *= c.Pace(min(1, float64(at)/float64(c.end())))
	}
	return base
}
