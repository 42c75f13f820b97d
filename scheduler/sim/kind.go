package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// A Kind describes a container whose time is not a line with a little noise: how the time depends
// on the rows, on chance, and on how long the container has been serving. The zero value adds
// nothing to the line of the [Profile].
type Kind struct {
	IsKind bool                         // it is one of [Kinds]
	Curve  func(rows int) time.Duration // undisturbed; nil: the line
	Pace   func(share float64) float64  // factor, by the share of the cell that has passed; nil: 1
	Chance float64                      // probability that a batch is disturbed
	Factor float64                      // factor of a disturbed batch; 0: 1
	Stall  time.Duration                // added to a disturbed batch, whatever its size
}

// Kinds returns the containers for which the promises of package sim hold, besides [Profiles].
// Their batches take 5 to 30 ms at half the SLO, except the accelerator's 120 and the small model's
// 3.
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
		// An accelerator: one row takes longer than the objective.
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

// base is the time of an undisturbed batch, at the initial pace.
func (p Profile) base(rows int) time.Duration {
	if p.Curve != nil {
		return p.Curve(rows)
	}
	return p.A + p.B*time.Duration(rows)
}

// factor is the factor of a disturbed batch.
func (p Profile) factor() float64 {
	if p.Factor == 0 {
		return 1
	}
	return p.Factor
}

// mean is the mean time of a batch that takes base undisturbed.
func (p Profile) mean(base float64) float64 {
	return base*(1+p.Chance*(p.factor()-1)) + p.Chance*float64(p.Stall)
}

// within is the probability that a batch that takes base undisturbed takes no longer than left.
func (p Profile) within(left, base float64) float64 {
	if p.Chance == 0 {
		return normal(left/base-1, p.Noise)
	}
	disturbed := normal((left-float64(p.Stall))/(base*p.factor())-1, p.Noise)
	return (1-p.Chance)*normal(left/base-1, p.Noise) + p.Chance*disturbed
}

// normal is the probability that a normal variable of mean 0 is at most x. The oracle needs it for
// each waiting row and batch size: math.Erfc would take half of a simulation. Between the values of
// the table it interpolates linearly, with an error of at most 5e-7.
func normal(x, sigma float64) float64 {
	switch z := x / sigma; {
	case z >= 4:
		return 1
	case z > -4:
		at := (z + 4) * normalStep
		i := int(at)
		return normals[i] + (at-float64(i))*(normals[i+1]-normals[i])
	}
	return 0
}

const normalStep = 256 // values of the table for each sigma

var normals = func() (table [8*normalStep + 1]float64) {
	for i := range table {
		table[i] = 0.5 * math.Erfc((4-float64(i)/normalStep)/math.Sqrt2)
	}
	return table
}()

// A clockwork draws the execution times of one replica.
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

// leastNoise bounds the effect of noise: no batch takes less than this share of its undisturbed
// time.
const leastNoise = 0.2

// next is the execution time of the replica's next batch, which begins at the given time of the
// cell. It makes the same draws for a batch of any size, so that the noise of the k-th batch is
// the same for all strategies.
func (w *clockwork) next(rows int, at time.Duration) time.Duration {
	d := w.cell.at(rows, at) * max(leastNoise, 1+w.cell.Noise*w.rng.NormFloat64())
	if w.rng.Float64() < w.cell.Chance {
		d = d*w.cell.factor() + float64(w.cell.Stall)
	}
	return time.Duration(d)
}
