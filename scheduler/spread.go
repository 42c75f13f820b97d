package scheduler

import "slices"

// A spread is by how much batches differ from what is typical of their size, by the last 64 of
// them.
//
// It has a part that multiplies, the model's own variation, and one that adds: a machine that is
// busy, a garbage collection, a tick of another scheduler hold up a batch for as long whatever its
// size. One factor for all sizes has a second stable state: a stall of 33 ms beside a batch of one
// that takes 0.3 is a factor of 100, with which two rows are planned beyond any objective; so
// batches stay small, and the stalls as large beside them. So what is far from the median is taken
// to add. Where it does multiply, that understates it for larger batches, until they have been
// measured, and overstates it for smaller ones; neither lasts, and neither keeps anybody from
// growing.
type spread struct {
	upper  level               // the 96th percentile, where one figure has to do
	levels [spreadLevels]level // quantiles evenly spread, rising, for the deadline strategy, which weighs chances
	body   float64             // the 96th percentile of the part that multiplies
	down   float64             // the 10th
	sigma  float64             // the standard deviation of the part that multiplies, if it is normal
	stalls int                 // how many of the last 64 are taken to be stalls
	stall  float64             // what they add in the median, in ns
}

// A level is one quantile of the spread.
type level struct{ mul, add float64 }

// of is the level of a batch that typically takes ns.
func (l level) of(ns float64) float64 { return ns*l.mul + l.add }

const (
	spreadSize   = 64
	spreadLevels = 16
	upperShare   = 0.96
	lowerShare   = 0.10
	fewSamples   = 8    // below, the spread is not known well
	fewFactor    = 1.25 // ... and is taken to be at least this
	leastStall   = 1.5  // times the median; and
	stallSigmas  = 4    // standard deviations above it is what counts as a stall at least
)

// derive makes it of the last measurements of a profile, whose curve is known.
func (s *spread) derive(p *profile) {
	var ratioBuf, addBuf [spreadSize]float64
	ratios := ratioBuf[:p.kept]
	for i, m := range p.recent[:p.kept] {
		ratios[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(ratios)
	mid := ratios[p.kept/2]
	s.sigma = max(0, (ratios[p.kept*84/100]-ratios[p.kept*16/100])/2)
	limit := max(mid*leastStall, mid+stallSigmas*max(0, mid-ratios[p.kept*16/100]))
	body, _ := slices.BinarySearch(ratios, limit)
	body = max(body, p.kept/2+1)
	adds := addBuf[:0]
	top := ratios[body-1]
	if body < p.kept {
		for _, m := range p.recent[:p.kept] {
			if t := p.typical(m.rows); m.ns/t >= ratios[body] {
				adds = append(adds, max(0, m.ns-t*top))
			}
		}
		slices.Sort(adds)
	}
	s.stalls, s.stall = len(adds), 0
	if len(adds) > 0 {
		s.stall = adds[len(adds)/2]
	}
	at := func(i int) level {
		if i < body {
			return level{mul: min(ratios[i], maxFactor)}
		}
		return level{mul: min(top, maxFactor), add: adds[min(i-body, len(adds)-1)]}
	}
	s.upper = at(int(float64(p.kept) * upperShare))
	s.upper.mul = max(1, s.upper.mul)
	s.body = min(max(1, ratios[int(float64(body)*upperShare)]), maxFactor)
	s.down = min(1, ratios[int(float64(p.kept)*lowerShare)])
	few := p.kept < fewSamples
	if few {
		s.upper.mul = max(s.upper.mul, fewFactor)
		s.body = max(s.body, fewFactor)
		s.down = min(s.down, 1/fewFactor)
	}
	for i := range s.levels {
		s.levels[i] = at((2*i + 1) * p.kept / (2 * spreadLevels))
		if few {
			s.levels[i] = s.upper
		}
	}
}
