package scheduler

import "slices"

// A spread is the distribution of the last 64 batches around the typical times of their sizes.
//
// It has a part that multiplies, the model's own variation, and one that adds: a busy machine, a
// garbage collection or another process's time slice holds up a batch for the same time whatever
// its size. A single factor for all sizes has a second stable state: a stall of 33 ms in a batch of
// one row that takes 0.3 ms is a factor of 100, by which two rows are planned beyond any objective;
// so batches stay small, and the factor large. Therefore measurements far from the median are
// treated as added time. If they really multiply, larger batches are underestimated until they have
// been measured, and smaller ones overestimated. Neither error lasts, and neither keeps batches
// from growing.
type spread struct {
	upper level // the 96th percentile, where a single figure is needed
	// Evenly spaced quantiles, rising, for the deadline strategy's expected values.
	levels [spreadLevels]level
	body   float64 // the 96th percentile of the part that multiplies
	down   float64 // the 10th
	// The standard deviation of the part that multiplies, taken as normal.
	sigma  float64
	stalls int     // how many of the last 64 count as stalls
	stall  float64 // median of the time that they add, in ns
}

// A level is one quantile of the spread.
type level struct{ mul, add float64 }

// of is the time, at this level, of a batch that typically takes ns.
func (l level) of(ns float64) float64 { return ns*l.mul + l.add }

const (
	spreadSize   = 64
	spreadLevels = 16
	upperShare   = 0.96
	lowerShare   = 0.10
	fewSamples   = 8    // below this many, the spread is uncertain
	fewFactor    = 1.25 // ... and is taken to be at least this factor
	leastStall   = 1.5  // times the median; and
	stallSigmas  = 4    // standard deviations above the median: what counts as a stall
)

// derive computes the spread from the latest measurements of a profile, whose curve must be up to
// date.
func (s *spread) derive(p *profile) {
	var ratioBuf, addBuf [spreadSize]float64
	ratios := ratioBuf[:p.n]
	for i, m := range p.recent[:p.n] {
		ratios[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(ratios)
	mid := ratios[p.n/2]
	s.sigma = max(0, (ratios[p.n*84/100]-ratios[p.n*16/100])/2)
	limit := max(mid*leastStall, mid+stallSigmas*max(0, mid-ratios[p.n*16/100]))
	body, _ := slices.BinarySearch(ratios, limit)
	body = max(body, p.n/2+1)
	adds := addBuf[:0]
	top := ratios[body-1]
	if body < p.n {
		for _, m := range p.recent[:p.n] {
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
	s.upper = at(int(float64(p.n) * upperShare))
	s.upper.mul = max(1, s.upper.mul)
	s.body = min(max(1, ratios[int(float64(body)*upperShare)]), maxFactor)
	s.down = min(1, ratios[int(float64(p.n)*lowerShare)])
	few := p.n < fewSamples
	if few {
		s.upper.mul = max(s.upper.mul, fewFactor)
		s.body = max(s.body, fewFactor)
		s.down = min(s.down, 1/fewFactor)
	}
	for i := range s.levels {
		s.levels[i] = at((2*i + 1) * p.n / (2 * spreadLevels))
		if few {
			s.levels[i] = s.upper
		}
	}
}
