package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

type measurement struct {
	rows  int
	count int // number of measurements in the profile by then
	ns    float64
}

const (
	classSize     = 31
	halfTime      = 4e9      // ns after which a measurement has half its weight
	halfBatches   = 32       // ... if at least this many batches were measured meanwhile
	doubtedWeight = 1.0 / 32 // measurements
	knownWeight   = 4        // from here on a size is judged by its own measurements
	freshWeight   = 1.0 / 10 // below this a measurement is stale: the next one replaces it
)

// A sizeClass holds the latest measurements of its sizes. The class's point is their interquartile
// mean, which an outlier does not move.
type sizeClass struct {
	n, next int
	last    int64 // time of the latest measurement
	count   int   // ... and the profile's number of measurements by then
	// It is older than a contradiction, or refuted: the next measurement replaces it.
	doubted bool
	off     deviation              // of its sizes
	m       [classSize]measurement // a ring
	sorted  [classSize]float64     // their times, in order
	rows    int                    // their sum
}

// forget drops all but the newest measurements.
func (c *sizeClass) forget(keep int) {
	keep = min(keep, c.n)
	var latest [classSize]measurement
	for i := range keep {
		latest[i] = *c.newest(keep - i)
	}
	c.n, c.next, c.rows = 0, 0, 0
	for _, m := range latest[:keep] {
		c.add(m)
	}
}

// newest is the nth newest measurement, from 1.
func (c *sizeClass) newest(n int) *measurement { return &c.m[(c.next-n+classSize)%classSize] }

// since is the profile's count when half of the class's measurements had been made.
func (c *sizeClass) since() int { return c.newest((c.n + 1) / 2).count }

// before is the largest count of a measurement in the class that is at most the given one; 0: none.
func (c *sizeClass) before(count int) int {
	last := 0
	for _, m := range c.m[:c.n] {
		if m.count <= count {
			last = max(last, m.count)
		}
	}
	return last
}

// weight is the present weight of the class, in measurements.
func (c *sizeClass) weight(p *profile, now int64) float64 {
	if c.doubted {
		return doubtedWeight
	}
	age := min(float64(now-c.last)/halfTime, float64(p.count-c.count)/halfBatches)
	return float64(c.n) * math.Exp2(-max(age, 0))
}

// add replaces the oldest measurement.
func (c *sizeClass) add(m measurement) {
	if c.n == classSize {
		old := c.m[c.next]
		c.rows -= old.rows
		at, _ := slices.BinarySearch(c.sorted[:], old.ns)
		copy(c.sorted[at:], c.sorted[at+1:])
		c.n--
	}
	at, _ := slices.BinarySearch(c.sorted[:c.n], m.ns)
	copy(c.sorted[at+1:], c.sorted[at:c.n])
	c.sorted[at] = m.ns
	c.rows += m.rows
	c.m[c.next] = m
	c.next = (c.next + 1) % classSize
	c.n++
}

// point is the mean size of the measurements and the mean of the middle half of their times, in ns.
// Outliers do not move it, and its standard error is smaller than the median's.
func (c *sizeClass) point() (rows, ns float64) {
	from := (c.n + 1) / 4
	to := c.n - from
	if c.n == 2 { // one of them may be an outlier, and outliers are long
		to = 1
	}
	for _, t := range c.sorted[from:to] {
		ns += t
	}
	return float64(c.rows) / float64(c.n), ns / float64(to-from)
}

// sigma is the spread of its measurements relative to their median: the standard deviation, if the
// measurements are normally distributed. With very few measurements it means little.
func (c *sizeClass) sigma() float64 {
	return (c.sorted[c.n*84/100] - c.sorted[c.n*16/100]) / 2 / c.sorted[c.n/2]
}

// quarterOf is the index of the smallest round size that is not below rows. Round sizes are 1 to
// 8, then four to the doubling: 10, 12, 14, 16, 20 and so on.
func quarterOf(rows int) int {
	if rows <= 8 {
		return rows - 1
	}
	k := bits.Len(uint(rows-1)) - 1
	return 8 + (k-3)*4 + (rows-1)>>(k-2)&3
}

// roundSize is the round size with the given index, from 0.
func roundSize(quarter int) int {
	if quarter < 8 {
		return quarter + 1
	}
	k := 3 + (quarter-8)/4
	return (5 + (quarter-8)%4) << (k - 2)
}

// classOf is the class of a size. Each round size is a class of its own, and so are the sizes
// between two of them: hardware that works in blocks of rows takes the same time up to a round
// size, and more right above it.
func classOf(rows int) int {
	q := quarterOf(rows)
	if rows == roundSize(q) {
		return 2*q + 1
	}
	return 2 * q
}
