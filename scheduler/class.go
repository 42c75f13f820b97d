package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

type measurement struct {
	rows  int
	count int // measurements of the profile by then
	ns    float64
}

const (
	classSize     = 31
	halfTime      = 4e9      // ns after which a memory is worth half
	halfBatches   = 32       // ... if there were so many batches meanwhile
	hearsayWeight = 1.0 / 32 // measurements
	knownWeight   = 4        // from here on, a size is known by its own measurements
	freshWeight   = 1.0 / 10 // below, a memory is old: the next measurement replaces it
)

// A sizeClass remembers the last measurements of its sizes. Their median, nearly, is its point: an
// outlier moves no median.
type sizeClass struct {
	kept, next int
	last       int64                  // when it was measured last
	count      int                    // ... measurements of the profile by then
	hearsay    bool                   // from before a contradiction, or refuted: the next measurement replaces it
	off        deviation              // of its sizes
	m          [classSize]measurement // a ring
	sorted     [classSize]float64     // their times, in order
	rows       int                    // their sum
}

// forget leaves only the newest measurements.
func (c *sizeClass) forget(keep int) {
	keep = min(keep, c.kept)
	var kept [classSize]measurement
	for i := range keep {
		kept[i] = *c.newest(keep - i)
	}
	c.kept, c.next, c.rows = 0, 0, 0
	for _, m := range kept[:keep] {
		c.add(m)
	}
}

// newest is its nth newest measurement, from 1.
func (c *sizeClass) newest(n int) *measurement { return &c.m[(c.next-n+classSize)%classSize] }

// since is the count by which half of them were made.
func (c *sizeClass) since() int { return c.newest((c.kept + 1) / 2).count }

// before is the count of the last of its measurements that is at most that; 0: there is none.
func (c *sizeClass) before(count int) int {
	last := 0
	for _, m := range c.m[:c.kept] {
		if m.count <= count {
			last = max(last, m.count)
		}
	}
	return last
}

// weight is how many measurements the class's memory is worth now.
func (c *sizeClass) weight(p *profile, now int64) float64 {
	if c.hearsay {
		return hearsayWeight
	}
	age := min(float64(now-c.last)/halfTime, float64(p.count-c.count)/halfBatches)
	return float64(c.kept) * math.Exp2(-max(age, 0))
}

// add replaces the oldest measurement.
func (c *sizeClass) add(m measurement) {
	if c.kept == classSize {
		old := c.m[c.next]
		c.rows -= old.rows
		at, _ := slices.BinarySearch(c.sorted[:], old.ns)
		copy(c.sorted[at:], c.sorted[at+1:])
		c.kept--
	}
	at, _ := slices.BinarySearch(c.sorted[:c.kept], m.ns)
	copy(c.sorted[at+1:], c.sorted[at:c.kept])
	c.sorted[at] = m.ns
	c.rows += m.rows
	c.m[c.next] = m
	c.next = (c.next + 1) % classSize
	c.kept++
}

// point is their mean size and the mean of the middle half of their times, in ns: no outlier moves
// it, and it is known better than the median.
func (c *sizeClass) point() (rows, ns float64) {
	from := (c.kept + 1) / 4
	to := c.kept - from
	if c.kept == 2 { // one of them may be an outlier, and outliers are long
		to = 1
	}
	for _, t := range c.sorted[from:to] {
		ns += t
	}
	return float64(c.rows) / float64(c.kept), ns / float64(to-from)
}

// sigma is by how much its measurements differ, as a share of their median: the standard deviation,
// if they are normal. Of very few it says little.
func (c *sizeClass) sigma() float64 {
	return (c.sorted[c.kept*84/100] - c.sorted[c.kept*16/100]) / 2 / c.sorted[c.kept/2]
}

// quarterOf is where a size stands among the round sizes: 1 to 8, then four to the doubling: 10,
// 12, 14, 16, 20 and so on. It is the first of them that is not smaller.
func quarterOf(rows int) int {
	if rows <= 8 {
		return rows - 1
	}
	k := bits.Len(uint(rows-1)) - 1
	return 8 + (k-3)*4 + (rows-1)>>(k-2)&3
}

// roundSize is the round size with that number, from 0.
func roundSize(quarter int) int {
	if quarter < 8 {
		return quarter + 1
	}
	k := 3 + (quarter-8)/4
	return (5 + (quarter-8)%4) << (k - 2)
}

// classOf is the class of a size: each round size is one by itself, and so are the sizes between
// two of them. The time of hardware that works in blocks of rows is the same up to such a size, and
// more right behind it.
func classOf(rows int) int {
	q := quarterOf(rows)
	if rows == roundSize(q) {
		return 2*q + 1
	}
	return 2 * q
}
