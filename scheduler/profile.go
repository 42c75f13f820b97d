package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

// A profile is what is known of a replica's execution time by batch size, learned online.
//
// Sizes fall into classes, four to the doubling. A class remembers its last few measurements, and their
// median is its point; an outlier moves no median. The points are made monotone by weighted averaging of
// neighbours that contradict each other (pool adjacent violators), and between points the time is linear.
// That gives the median time of every size. The spread is one for all sizes: the last 64 measurements over
// the median of their size: sixteen quantiles for the deadline strategy, which weighs chances, and the 96th
// percentile where one figure has to do. Taking the
// spread over all sizes together is what makes an upper quantile possible at all: a class alone has far
// too few measurements for one.
//
// Forgetting: medians are of the last 31 in a class, the spread is of the last 64 in all. A drift shows as
// eight measurements in a row more than a quarter off on the same side: then all points are scaled by the
// median of the eight, and the spread begins again from them. A class that was not measured for 10 s does
// not count for more than the classes below it suggest, so a bad memory cannot forbid a size for good.
//
// All times are in nanoseconds. A profile is not safe for concurrent use.
type profile struct {
	max     int // sizes are at most this
	classes []sizeClass
	largest int // largest size measured
	count   int // measurements ever

	recent [spreadSize]measurement // the last ones, a ring
	kept   int                     // of them in use
	run    int                     // how many of the last were off on the same side: negative, below

	// Derived by update.
	updated     int64                 // when
	median      []float64             // by size; median[0] is unused, sizes beyond are extrapolated
	eager       []float64             // the same, less what it may be wrong by
	slope       float64               // per row, beyond
	upper, down float64               // factors of the upper and lower quantile
	levels      [spreadLevels]float64 // factors of quantiles evenly spread, rising
	points      []point               // scratch
}

type measurement struct {
	rows int
	ns   float64
}

type sizeClass struct {
	kept, next int
	last       int64                  // when it was measured last
	m          [classSize]measurement // a ring
	sorted     [classSize]float64     // their times, in order
	rows       int                    // their sum
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

// point is their mean size and their median time.
func (c *sizeClass) point() point {
	mid := c.sorted[c.kept/2]
	if c.kept%2 == 0 {
		mid = (mid + c.sorted[c.kept/2-1]) / 2
	}
	return point{rows: float64(c.rows) / float64(c.kept), ns: mid, weight: float64(c.kept)}
}

type point struct {
	rows, ns, weight float64
	own              float64 // ns as measured, before it leant on its neighbours
	stale            bool
}

const (
	classSize     = 31
	spreadSize    = 64
	spreadLevels  = 16
	upperShare    = 0.96
	lowerShare    = 0.10
	fewSamples    = 8              // below, the spread is not known well
	fewFactor     = 1.25           // ... and is taken to be at least this
	driftRun      = 8              // measurements in a row
	driftFactor   = 1.25           // ... that are this far off
	staleAfter    = 10_000_000_000 // ns
	updatePause   = 1_000_000      // ns between updates once enough is known; see update
	maxFactor     = 1 << 10        // bounds a ratio, so that one absurd measurement cannot overflow anything
	maxExec       = 1 << 50        // ns, likewise
	leanReach     = 2.5            // how many times as large, or as small, a neighbour is at most
	leanWeight    = 4              // measurements
	levelSigmas   = 3.72           // between the outermost levels, if the spread is normal
	untriedWeight = 0.25           // measurements that a size without any stands for, in standard errors
	minDoubt      = 0.001          // of a median: bounds of what it may be wrong by
	maxDoubt      = 0.1
)

func newProfile(maxRows int) profile { return profile{max: maxRows, upper: 1, down: 1} }

// classOf is the class of a size: 1 to 7 are their own, then four to the doubling.
func classOf(rows int) int {
	if rows < 8 {
		return rows - 1
	}
	k := bits.Len(uint(rows)) - 1
	return 7 + (k-3)*4 + rows>>(k-2)&3
}

// known tells whether anything was measured.
func (p *profile) known() bool { return p.count > 0 }

// explored is the largest size that may be tried: at most double the largest one measured.
func (p *profile) explored() int { return min(max(1, 2*p.largest), p.max) }

// typical is the median time of a batch of n rows; 0 if nothing is known.
func (p *profile) typical(n int) float64 {
	if n < len(p.median) {
		return p.median[n]
	}
	if len(p.median) == 0 {
		return 0
	}
	last := len(p.median) - 1
	return p.median[last] + p.slope*float64(n-last)
}

// planned is the upper quantile.
func (p *profile) planned(n int) int64 { return int64(min(p.typical(n)*p.upper, maxExec)) }

// hoped is a lower quantile: what would be a stroke of luck.
func (p *profile) hoped(n int) int64 { return int64(min(p.typical(n)*p.down, maxExec)) }

// learn takes in that a batch of rows took ns, at time now.
func (p *profile) learn(rows int, ns, now int64) {
	if rows < 1 {
		return
	}
	ns = min(max(ns, 1), maxExec)
	// The first batch of a replica's life pays for what is done once: loading, compiling, filling caches.
	// It is all there is to plan the second one with, and then forgotten.
	if p.count == 1 {
		*p = profile{max: p.max, count: 1, classes: p.classes[:0], median: p.median[:0], eager: p.eager[:0], points: p.points[:0]}
	}
	ratio := 1.0
	if p.kept > 0 {
		ratio = float64(ns) / p.typical(rows)
	}
	p.count++
	grown := rows > p.largest
	p.largest = max(p.largest, rows)
	m := measurement{rows, float64(ns)}

	copy(p.recent[1:], p.recent[:spreadSize-1])
	p.recent[0] = m
	p.kept = min(p.kept+1, spreadSize)

	for c := classOf(rows); len(p.classes) <= c; {
		if len(p.classes) < cap(p.classes) {
			p.classes = p.classes[:len(p.classes)+1]
			p.classes[len(p.classes)-1] = sizeClass{}
		} else {
			p.classes = append(p.classes, sizeClass{})
		}
	}
	c := &p.classes[classOf(rows)]
	c.add(m)
	c.last = now

	switch {
	case ratio > driftFactor:
		p.run = max(p.run, 0) + 1
	case ratio < 1/driftFactor:
		p.run = min(p.run, 0) - 1
	default:
		p.run = 0
	}
	drifted := p.run == driftRun || p.run == -driftRun
	if drifted {
		p.drift()
	}
	if grown || drifted || p.kept < spreadSize || now-p.updated >= updatePause {
		p.update(now)
	}
}

// drift scales everything by how far the last measurements were off.
func (p *profile) drift() {
	var off [driftRun]float64
	for i, m := range p.recent[:driftRun] {
		off[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(off[:])
	factor := min(max(off[driftRun/2], 1.0/maxFactor), maxFactor)
	for i := range p.classes {
		c := &p.classes[i]
		for j := range c.kept {
			c.m[j].ns *= factor
			c.sorted[j] *= factor
		}
	}
	// The eight themselves are in their classes too and were scaled with the rest: outweigh that by
	// entering them again.
	for i := driftRun - 1; i >= 0; i-- {
		p.classes[classOf(p.recent[i].rows)].add(p.recent[i])
	}
	p.kept = driftRun
	p.run = 0
}

// update derives the median times and the spread. It takes about 4 µs, much for a container that answers
// in 10; so when nothing new is to be seen, fast batches share one. A batch of a millisecond or more
// has its own.
func (p *profile) update(now int64) {
	p.updated = now
	p.points = p.points[:0]
	for i := range p.classes {
		c := &p.classes[i]
		if c.kept == 0 {
			continue
		}
		pt := c.point()
		pt.stale = now-c.last > staleAfter
		p.points = append(p.points, pt)
	}
	p.trimStale()
	p.lean()
	p.monotone()
	p.interpolate()
	p.spread()
	p.encourage(now)
}

// trimStale bounds an old point by proportion to the fresh one below it: two batches of n rows never take
// longer than one of 2n should.
func (p *profile) trimStale() {
	fresh := -1
	for i := range p.points {
		at := &p.points[i]
		if !at.stale {
			fresh = i
		} else if fresh >= 0 {
			f := p.points[fresh]
			at.ns = min(at.ns, f.ns*at.rows/f.rows)
		}
	}
}

// lean draws each point towards the line through its neighbours, those of less than about double or half
// its size, with the weight of a few measurements. A point of many stands; one of a single unlucky
// measurement would else keep a strategy from its size for good.
func (p *profile) lean() {
	for i := range p.points {
		p.points[i].own = p.points[i].ns
	}
	for i := range p.points {
		at := &p.points[i]
		var w, x, y, xx, xy float64
		add := func(o *point) {
			dx := o.rows - at.rows
			w += o.weight
			x += o.weight * dx
			y += o.weight * o.own
			xx += o.weight * dx * dx
			xy += o.weight * dx * o.own
		}
		for j := i - 1; j >= 0 && p.points[j].rows >= at.rows/leanReach; j-- {
			add(&p.points[j])
		}
		for j := i + 1; j < len(p.points) && p.points[j].rows <= at.rows*leanReach; j++ {
			add(&p.points[j])
		}
		if det := w*xx - x*x; det > 1e-6*w*xx {
			line := max((y*xx-x*xy)/det, 0) // at dx = 0
			lean := min(w, leanWeight)
			at.ns = (at.own*at.weight + line*lean) / (at.weight + lean)
		}
	}
}

// monotone makes the points' times rise with the size: neighbours that fall are pooled to their average.
func (p *profile) monotone() {
	pts := p.points
	for i := 1; i < len(pts); i++ {
		// Pool backwards while the order is violated; pooled points keep their sizes and share the time.
		j, ns, weight := i, pts[i].ns, pts[i].weight
		for j > 0 && pts[j-1].ns > ns {
			j--
			ns = (ns*weight + pts[j].ns*pts[j].weight) / (weight + pts[j].weight)
			weight += pts[j].weight
		}
		for k := j; k <= i; k++ {
			pts[k].ns = ns
		}
	}
}

// interpolate fills in the median time of every size up to the largest that may be tried.
func (p *profile) interpolate() {
	pts := p.points
	limit := p.explored()
	p.median = slices.Grow(p.median[:0], limit+1)[:limit+1]
	first, last := pts[0], pts[len(pts)-1]
	// Beyond the last point the line through it and a point of about half its size goes on, but never with
	// less than a quarter of the proportional slope: a flat pair of points promises nothing. With one point
	// alone, time is taken to be proportional.
	p.slope = last.ns / last.rows
	for i := len(pts) - 2; i >= 0; i-- {
		if pts[i].rows <= last.rows*0.6 || i == 0 && pts[i].rows < last.rows*0.9 {
			p.slope = max((last.ns-pts[i].ns)/(last.rows-pts[i].rows), p.slope/4)
			break
		}
	}
	i := 0
	for n := 1; n <= limit; n++ {
		x := float64(n)
		for i+1 < len(pts) && pts[i+1].rows <= x {
			i++
		}
		switch {
		case x <= first.rows:
			p.median[n] = first.ns
		case i+1 == len(pts):
			p.median[n] = last.ns + p.slope*(x-last.rows)
		default:
			a, b := pts[i], pts[i+1]
			p.median[n] = a.ns + (b.ns-a.ns)*(x-a.rows)/(b.rows-a.rows)
		}
	}
}

// encourage derives the times to compare sizes by: less than the median by as much as it may be wrong. Of a
// size that was unlucky when it was tried, or that was never tried, nothing would be learned if it were not
// tried again.
func (p *profile) encourage(now int64) {
	p.eager = append(p.eager[:0], p.median...)
	sigma := (p.levels[spreadLevels-1] - p.levels[0]) / levelSigmas
	class, share := -1, 1.0
	for n := 1; n < len(p.eager); n++ {
		if k := classOf(n); k != class {
			class = k
			weight := untriedWeight
			if k < len(p.classes) && p.classes[k].kept > 0 {
				weight = float64(p.classes[k].kept)
				if now-p.classes[k].last > staleAfter {
					weight = 1
				}
			}
			share = 1 - min(max(sigma/math.Sqrt(weight), minDoubt), maxDoubt)
		}
		p.eager[n] *= share
	}
}

// spread derives the quantile factors from the last measurements.
func (p *profile) spread() {
	var buf [spreadSize]float64
	ratios := buf[:p.kept]
	for i, m := range p.recent[:p.kept] {
		ratios[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(ratios)
	p.upper = max(1, ratios[int(float64(p.kept)*upperShare)])
	p.down = min(1, ratios[int(float64(p.kept)*lowerShare)])
	if p.kept < fewSamples {
		p.upper = max(p.upper, fewFactor)
		p.down = min(p.down, 1/fewFactor)
	}
	p.upper = min(p.upper, maxFactor)
	for i := range p.levels {
		p.levels[i] = min(ratios[(2*i+1)*p.kept/(2*spreadLevels)], maxFactor)
		if p.kept < fewSamples {
			p.levels[i] = p.upper
		}
	}
}
