package scheduler

import (
	"math"
	"math/bits"
	"slices"
)

// A profile is what is known of a replica's execution time by batch size, learned online: a curve,
// which says what a batch of each size takes in the median, and a spread, which says by how much
// batches differ from it.
//
// Sizes fall into classes, eight to the doubling. A class remembers its last few measurements, and
// their median is its point; an outlier moves no median. The points are made monotone by weighted
// averaging of neighbours that contradict each other (pool adjacent violators), and between points
// the time is linear. The spread is one for all sizes, as a class alone has far too few
// measurements for an upper quantile. See there.
//
// Forgetting: the memory of a class loses weight against those that are measured, by half with every four seconds and
// 32 batches, and in the end the next measurement takes its place. What is contradicted
// goes at once (deviation): where all sizes together are off by a factor, by less than one in hundreds of thousands
// by chance, all points are scaled by it; where one size is off, its class forgets what was before. In both cases
// the other classes are hearsay from then on: they count where nothing else is known.
//
// All times are in nanoseconds. A profile is not safe for concurrent use.
type profile struct {
	max     int // sizes are at most this
	classes []sizeClass
	largest int // largest size measured
	count   int // measurements ever
	upsets  int // how often what was believed was contradicted

	recent [spreadSize]measurement // the last ones, the newest first
	kept   int                     // of them in use
	off    deviation               // of all sizes

	// Derived by update.
	updated int64     // when
	median  []float64 // by size; median[0] is unused, sizes beyond are extrapolated
	eager   []float64 // the same, less what it may be wrong by
	slope   float64   // per row, beyond
	spread  spread
	points  []point // scratch
}

type measurement struct {
	rows int
	ns   float64
}

type sizeClass struct {
	kept, next int
	last       int64                  // when it was measured last
	count      int                    // measurements of the profile by then
	hearsay    bool                   // from before a contradiction
	off        deviation              // of its sizes
	m          [classSize]measurement // a ring
	sorted     [classSize]float64     // their times, in order
	rows       int                    // their sum
}

// forget leaves only the newest measurements.
func (c *sizeClass) forget(keep int) {
	keep = min(keep, c.kept)
	var newest [classSize]measurement
	for i := range keep {
		newest[i] = c.m[(c.next-keep+i+classSize)%classSize]
	}
	c.kept, c.next, c.rows = 0, 0, 0
	for _, m := range newest[:keep] {
		c.add(m)
	}
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

// point is their mean size and the mean of the middle half of their times: no outlier moves it, and
// it is known better than the median.
func (c *sizeClass) point() point {
	from := (c.kept + 1) / 4
	to := c.kept - from
	if c.kept == 2 { // one of them may be an outlier, and outliers are long
		to = 1
	}
	sum := 0.0
	for _, ns := range c.sorted[from:to] {
		sum += ns
	}
	return point{rows: float64(c.rows) / float64(c.kept), ns: sum / float64(to-from)}
}

type point struct {
	rows, ns, weight float64
	own              float64 // ns as measured, before it leant on its neighbours
}

const (
	classSize     = 31
	halfTime      = 4e9       // ns after which a memory is worth half
	halfBatches   = 32        // ... if there were so many batches meanwhile
	hearsayWeight = 1.0 / 32  // measurements
	knownWeight   = 4         // from here on, a size is known by its own measurements
	freshWeight   = 1.0 / 10  // below, a memory is old: the next measurement replaces it
	updatePause   = 1_000_000 // ns between updates once enough is known; see update
	maxFactor     = 1 << 10   // bounds a ratio, so that one absurd measurement cannot overflow anything
	maxExec       = 1 << 50   // ns, likewise
	anotherFactor = 1.5       // a drift by more is no drift: the replica is another one
	leanReach     = 2.5       // how many times as large, or as small, a neighbour is at most
	leanWeight    = 8         // measurements, that the line through the neighbours is worth
	leanSigmas    = 5         // of both: a size that is shorter by more than that does not lean
	leanError     = 0.1       // ... and more, the more the noise exceeds what the curve may differ from a line
	untriedWeight = 0.25      // measurements that a size without any stands for, in standard errors
	maxDoubt      = 0.1
	minDoubt      = 0.001 // of a median: bounds of what it may be wrong by
)

func newProfile(maxRows int) profile {
	return profile{max: maxRows, spread: spread{upper: level{mul: 1}, body: 1, down: 1}}
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
func (p *profile) planned(n int) int64 { return int64(min(p.spread.upper.of(p.typical(n)), maxExec)) }

// owed is what of the upper quantile the size is responsible for: without the stalls, which smaller
// batches would not be spared.
func (p *profile) owed(n int) int64 { return int64(min(p.typical(n)*p.spread.body, maxExec)) }

// hoped is a lower quantile: what would be a stroke of luck.
func (p *profile) hoped(n int) int64 { return int64(min(p.typical(n)*p.spread.down, maxExec)) }

// learn takes in that a batch of rows took ns, at time now.
func (p *profile) learn(rows int, ns, now int64) {
	if rows < 1 {
		return
	}
	ns = min(max(ns, 1), maxExec)
	// The first batch of a replica's life pays for what is done once: loading, compiling, filling
	// caches. It is all there is to plan the second one with, and then forgotten.
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
	known := c.weight(p, now) >= knownWeight
	if c.kept > 0 && c.weight(p, now) < freshWeight {
		c.forget(0)
		c.off = deviation{}
	}
	c.add(m)
	c.last, c.count, c.hearsay = now, p.count, false

	upset := true
	// What a batch was under way for apart from its execution is not known better than that.
	sigma := p.spread.sigma + float64(minOverhead)/p.typical(rows)
	// A size that was a guess until now says nothing about the others.
	drifted := 0
	if known {
		drifted = p.off.observe(ratio, sigma)
	}
	if drifted > 0 {
		p.drift(min(drifted, p.kept))
	} else if run := c.off.observe(ratio, sigma); run > 0 {
		c.forget(run)
		p.distrust(c, run)
		p.upsets++
	} else {
		upset = false
	}
	if grown || upset || p.kept < spreadSize || now-p.updated >= updatePause {
		p.update(now)
	}
}

// drift scales everything by how far the last measurements were off.
func (p *profile) drift(run int) {
	var buf [spreadSize]float64
	off := buf[:run]
	for i, m := range p.recent[:run] {
		off[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(off)
	factor := min(max(off[run/2], 1.0/maxFactor), maxFactor)
	for i := range p.classes {
		c := &p.classes[i]
		for j := range c.kept {
			c.m[j].ns = min(max(c.m[j].ns*factor, 1), maxExec)
			c.sorted[j] = min(max(c.sorted[j]*factor, 1), maxExec)
		}
	}
	// The last ones themselves are in their classes too and were scaled with the rest: there, they
	// are all that counts.
	for i := run - 1; i >= 0; i-- {
		p.classes[classOf(p.recent[i].rows)].forget(0)
	}
	for i := run - 1; i >= 0; i-- {
		p.classes[classOf(p.recent[i].rows)].add(p.recent[i])
	}
	p.distrust(nil, run)
	if factor > anotherFactor || factor < 1/anotherFactor {
		p.upsets++
	}
}

// distrust makes hearsay of every class but one, and of those of the last run measurements. The
// spread begins again from these.
func (p *profile) distrust(but *sizeClass, run int) {
	for i := range p.classes {
		c := &p.classes[i]
		c.hearsay = c != but && p.count-c.count >= run
		c.off = deviation{}
	}
	p.off = deviation{}
	p.kept = min(p.kept, run)
}

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

// update derives the median times and the spread. It takes about 8 µs, much for a container that
// answers in 10; so when nothing new is to be seen, fast batches share one. A batch of a
// millisecond or more has its own.
func (p *profile) update(now int64) {
	p.updated = now
	p.points = p.points[:0]
	for i := range p.classes {
		c := &p.classes[i]
		if c.kept == 0 {
			continue
		}
		pt := c.point()
		pt.weight = c.weight(p, now)
		p.points = append(p.points, pt)
	}
	p.trimStale()
	p.lean()
	p.monotone()
	p.interpolate()
	p.spread.derive(p)
	p.encourage(now)
}

// trimStale bounds old points by the fresh ones around: two batches of n rows never take longer
// than one of 2n should, and no batch longer than a larger one.
func (p *profile) trimStale() {
	fresh := -1
	for i := range p.points {
		at := &p.points[i]
		if at.weight >= freshWeight {
			fresh = i
		} else if fresh >= 0 {
			f := p.points[fresh]
			at.ns = min(at.ns, f.ns*at.rows/f.rows)
		}
	}
	most := math.Inf(1)
	for i := range slices.Backward(p.points) {
		if at := &p.points[i]; at.weight >= freshWeight {
			most = at.ns
		} else {
			at.ns = min(at.ns, most)
		}
	}
}

// lean draws each point towards the line through its neighbours, those of less than about double or
// half its size, with the weight of a few measurements. A point of many stands; one of a single
// unlucky measurement would else keep a strategy from its size for good.
func (p *profile) lean() {
	for i := range p.points {
		p.points[i].own = p.points[i].ns
	}
	trust := leanWeight + p.spread.sigma*p.spread.sigma/(leanError*leanError)
	down := math.Exp(-leanSigmas * math.Hypot(p.spread.sigma, leanError))
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
			// The line is known as well here as so many measurements of the size would be: a single old
			// one beyond another neighbour tells its slope, but next to nothing of where it leads.
			lean := min(det/xx, trust)
			if at.own < line*down {
				continue // bad luck is long: what is as short as that contradicts the line
			}
			at.ns = (at.own*at.weight + line*lean) / (at.weight + lean)
		}
	}
}

// monotone makes the points' times rise with the size: neighbours that fall are pooled to their
// average.
func (p *profile) monotone() {
	pts := p.points
	for i := 1; i < len(pts); i++ {
		// Pool backwards while the order is violated; pooled points keep their sizes and share the
		// time.
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
	// Beyond the last point the line through it and a point of about half its size goes on, but
	// never with less than a quarter of the proportional slope: a flat pair of points promises
	// nothing. With one point alone, time is taken to be proportional.
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

// encourage derives the times to compare sizes by: less than the median by as much as it may be
// wrong. Of a size that was unlucky when it was tried, or that was never tried, nothing would be
// learned if it were not tried again.
func (p *profile) encourage(now int64) {
	p.eager = append(p.eager[:0], p.median...)
	class, share := -1, 1.0
	for n := 1; n < len(p.eager); n++ {
		if k := classOf(n); k != class {
			class = k
			weight := untriedWeight
			if k < len(p.classes) && p.classes[k].kept > 0 {
				weight = max(p.classes[k].weight(p, now), untriedWeight)
			}
			share = 1 - min(max(p.spread.sigma/math.Sqrt(weight), minDoubt), maxDoubt)
		}
		p.eager[n] *= share
	}
}
