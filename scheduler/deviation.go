package scheduler

import "math"

// A deviation is a two-sided CUSUM test: it sums by how much measurements deviate from the
// prediction, as logarithms of their ratio and beyond a tolerance. Tolerance and threshold scale
// with the noise. With 30 % of noise, chance passes the threshold once in hundreds of thousands of
// batches, and a change by a factor of two after six. Fewer than four measurements never pass it,
// since outliers happen.
type deviation struct {
	above, below       float64
	aboveRun, belowRun int // measurements in the sum
}

const (
	toleratedLog  = 0.22 // tolerance at a noise of toleratedAt ...
	toleratedAt   = 0.25 // ... or above, a standard deviation
	toleratedLow  = 0.3  // smallest share of that tolerance
	contradiction = 11   // threshold, in tolerances
	countedLog    = 4    // ... of which one measurement adds at most this many
)

// pass counts a measurement that is evidence for neither side.
func (d *deviation) pass() {
	if d.above > 0 {
		d.aboveRun++
	}
	if d.below > 0 {
		d.belowRun++
	}
}

// observe adds a measurement; sigma is the noise of the spread. Once the prediction is
// contradicted, it returns the number of latest measurements that contradict it, else 0.
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
