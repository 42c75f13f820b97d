package scheduler

import "math"

// A deviation adds up by how much measurements are off, on either side, in logarithms and beyond
// what is tolerated each time (a CUSUM test). Tolerance and threshold go with the noise. With 30 %
// of it, chance passes the threshold once in hundreds of thousands of batches, a factor of two
// after six. Nothing does it in less than four: outliers happen.
type deviation struct {
	above, below       float64
	aboveRun, belowRun int // measurements in it
}

const (
	toleratedLog  = 0.22 // with so much noise ...
	toleratedAt   = 0.25 // ... or more, as a standard deviation
	toleratedLow  = 0.3  // share of that at least
	contradiction = 11   // times what is tolerated
	countedLog    = 4    // ... and as much of one measurement at most
)

// pass counts a measurement in that says neither.
func (d *deviation) pass() {
	if d.above > 0 {
		d.aboveRun++
	}
	if d.below > 0 {
		d.belowRun++
	}
}

// observe takes a measurement in, of a spread with that much noise. If what was believed is
// contradicted now, it says by how many of the last ones.
func (d *deviation) observe(ratio, sigma float64) (run int) {
	tolerated := toleratedLog * min(max(sigma/toleratedAt, toleratedLow), 1)
	x := min(max(math.Log(ratio)/tolerated, -countedLog), countedLog)
	d.aboveRun++
	if d.above += x - 1; d.above <= 0 {
		d.above, d.aboveRun = 0, 0
	}
	d.belowRun++
	if d.below -= x + 1; d.below <= 0 {
		d.below, d.belowRun = 0, 0
	}
	switch {
	case d.above > contradiction:
		return d.aboveRun
	case d.below > contradiction:
		return d.belowRun
	}
	return 0
}
