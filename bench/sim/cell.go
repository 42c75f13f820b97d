package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// A Profile is a model as its replicas serve it.
type Profile struct {
	Name     string
	A, B     time.Duration // a batch of n rows takes A + B·n in the mean
	Noise    float64       // relative standard deviation of that, normal
	SLO      time.Duration // deadline of a row, from its arrival
	Replicas int
}

// Profiles are the models that the promises are made for.
func Profiles() []Profile {
	const ms = time.Millisecond
	return []Profile{
		{Name: "5 ms + 0.05 ms n, 20 ms", A: 5 * ms, B: ms / 20, Noise: 0.10, SLO: 20 * ms, Replicas: 1},
		{Name: "5 ms + 0.5 ms n, 50 ms", A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 50 * ms, Replicas: 1},
		{Name: "0.5 ms + 0.2 ms n, 20 ms", A: ms / 2, B: ms / 5, Noise: 0.10, SLO: 20 * ms, Replicas: 1},
		{Name: "5 ms + 0.5 ms n, 30 ms, 4 replicas", A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 30 * ms, Replicas: 4},
	}
}

// Capacity is the rate with executions of half the SLO, in rows per second: what a replica can keep up when
// every row waits for at most one batch before its own. Batches have at most [MaxBatch] rows.
func (p Profile) Capacity() float64 {
	rows := min(float64(p.SLO/2-p.A)/float64(p.B), MaxBatch)
	return float64(p.Replicas) * rows / (p.A + time.Duration(rows*float64(p.B))).Seconds()
}

// MaxBatch is the most rows in a batch of anybody: the scheduler's default.
const MaxBatch = 128

// A Cell is one situation: who serves, and what is asked for.
type Cell struct {
	Profile
	Load   float64 // offered, as a share of the capacity
	Bursts bool    // on and off for 200 ms each, with 1.8 and 0.2 times the mean; else Poisson
	Mixed  bool    // deadlines are half, once or twice the SLO, a third each; else all have the SLO
	Stalls bool    // one batch in 500 takes 10 SLOs longer

	Warm, Length time.Duration // load that is not counted, and load that is
	Seed         uint64
}

const (
	burstHalf = 200 * time.Millisecond
	burstOn   = 1.8
	burstOff  = 0.2
	stallEach = 500
	stallFor  = 10 // SLOs
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
	if c.Stalls {
		s += "/stalls"
	}
	return s
}

// slos are the SLOs that rows have, with equal chances.
func (c Cell) slos() []time.Duration {
	if c.Mixed {
		return []time.Duration{c.SLO / 2, c.SLO, 2 * c.SLO}
	}
	return []time.Duration{c.SLO}
}

func (c Cell) longest() time.Duration { return slices.Max(c.slos()) }

// An arrival is one row: when it comes, and until when it must be answered, from the start.
type arrival struct {
	at, deadline time.Duration
}

// arrivals are all rows of the cell, in order.
func (c Cell) arrivals() []arrival {
	rng := rand.New(rand.NewPCG(c.Seed, 1))
	mean := 1e9 / (c.Capacity() * c.Load)
	end := c.Warm + c.Length
	all := make([]arrival, 0, int(float64(end)/mean*1.1))
	slos := c.slos()
	for at := time.Duration(0); ; {
		// By the time that a burst's clock shows, which runs at another speed in each half: a gap that
		// reaches into the next half is shortened or stretched there.
		left := mean * rng.ExpFloat64()
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
		if at > end {
			return all
		}
		all = append(all, arrival{at, at + slos[rng.IntN(len(slos))]})
	}
}

// A clockwork says how long the batches of one replica take.
type clockwork struct {
	cell Cell
	rng  *rand.Rand
}

func (c Cell) clockworks() []*clockwork {
	all := make([]*clockwork, c.Replicas)
	for i := range all {
		all[i] = &clockwork{c, rand.New(rand.NewPCG(c.Seed, 100+uint64(i)))}
	}
	return all
}

// next is the execution time of the replica's next batch. It draws the same for each batch whatever its
// size, so that the noise of the k-th is the same for all strategies.
func (w *clockwork) next(rows int) time.Duration {
	factor := 1 + w.cell.Noise*w.rng.NormFloat64()
	stalls := w.rng.IntN(stallEach) == 0
	d := float64(w.cell.A+w.cell.B*time.Duration(rows)) * max(0.2, factor)
	if stalls && w.cell.Stalls {
		d += float64(stallFor * w.cell.SLO)
	}
	return time.Duration(d)
}
