package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Kind is a container that is no line with a little noise: how its time depends on the rows,
// on luck, and on how long it has been serving. The zero value adds nothing to the line of the
// [Profile].
type Kind struct {
	IsKind bool                         // it is one of [Kinds]
	Curve  func(rows int) time.Duration // undisturbed; nil: the line
	Pace   func(share float64) float64  // what it is multiplied by, by the share of the cell that has passed; nil: 1
	Chance float64                      // of a batch to be disturbed
	Factor float64                      // what a disturbed one is multiplied by; 0: 1
	Stall  time.Duration                // what is added to a disturbed one, whatever its size
}

// Kinds are the containers that the promises of package sim hold for beside [Profiles]. Their
// batches take 5 to 30 ms at half the SLO, but for the accelerator's 120 and the small
// model's 3.
func Kinds() []Profile {
	const ms = time.Millisecond
	line := Profile{A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 50 * ms, Replicas: 1}
	kind := func(name string, change func(p *Profile)) Profile {
		p := line
		p.Name, p.IsKind = name, true
		change(&p)
		return p
	}
	return []Profile{
		kind("linear", func(*Profile) {}),
		// An accelerator: the objective is below what one row takes.
		kind("constant 120 ms", func(p *Profile) {
			p.A, p.B, p.Noise, p.SLO, p.Objective = 120*ms, 0, 0.02, 500*ms, 100*ms
		}),
		kind("steps of 16 rows", func(p *Profile) {
			p.Noise = 0.02
			p.Curve = func(rows int) time.Duration { return 4*ms + 8*ms*time.Duration((rows+15)/16) }
		}),
		kind("quadratic", func(p *Profile) {
			p.Curve = func(rows int) time.Duration { return 4*ms + ms/50*time.Duration(rows*rows) }
		}),
		kind("30 % noise", func(p *Profile) { p.Noise = 0.3 }),
		kind("3 % outliers", func(p *Profile) { p.Chance, p.Factor = 0.03, 4 }),
		kind("3 % stalls", func(p *Profile) {
			p.A, p.B, p.SLO, p.Chance, p.Stall = 3*ms/10, ms/50, 100*ms, 0.03, 33*ms
		}),
		kind("doubling half-way", func(p *Profile) {
			p.Pace = func(share float64) float64 {
				if share < 0.5 {
					return 1
				}
				return 2
			}
		}),
		kind("warming up", func(p *Profile) {
			p.Pace = func(share float64) float64 { return 1 + 3*math.Exp(-5*share) }
		}),
	}
}

// base is what a batch takes if nothing disturbs it, at the pace of the beginning.
func (p Profile) base(rows int) time.Duration {
	if p.Curve != nil {
		return p.Curve(rows)
	}
	return p.A + p.B*time.Duration(rows)
}

// factor is what a disturbed batch is multiplied by.
func (p Profile) factor() float64 {
	if p.Factor == 0 {
		return 1
	}
	return p.Factor
}

// mean is what a batch takes on average, if base is what it takes undisturbed.
func (p Profile) mean(base float64) float64 {
	return base*(1+p.Chance*(p.factor()-1)) + p.Chance*float64(p.Stall)
}

// within is the probability that a batch takes no longer than left, if base is what it takes
// undisturbed.
func (p Profile) within(left, base float64) float64 {
	if p.Chance == 0 {
		return normal(left/base-1, p.Noise)
	}
	disturbed := normal((left-float64(p.Stall))/(base*p.factor())-1, p.Noise)
	return (1-p.Chance)*normal(left/base-1, p.Noise) + p.Chance*disturbed
}

// normal is the probability that a normal variable of mean 0 is at most x.
func normal(x, sigma float64) float64 {
	switch z := x / sigma; {
	case z > 4:
		return 1
	case z > -4:
		return 0.5 * math.Erfc(-z/math.Sqrt2)
	}
	return 0
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

// leastNoise bounds what noise makes of a time: no batch takes less than this share of it.
const leastNoise = 0.2

// next is the execution time of the replica's next batch, which begins at a time of the cell.
// It draws the same for each batch whatever its size, so that the noise of the k-th is the same
// for all strategies.
func (w *clockwork) next(rows int, at time.Duration) time.Duration {
	d := w.cell.at(rows, at) * max(leastNoise, 1+w.cell.Noise*w.rng.NormFloat64())
	if w.rng.Float64() < w.cell.Chance {
		d = d*w.cell.factor() + float64(w.cell.Stall)
	}
	return time.Duration(d)
}
