package scheduler

import "slices"

// A profile is a model of a replica's execution time by batch size, learned online: a curve of
// the median time by size, and a spread of the batches around it.
//
// Sizes fall into classes, eight to the doubling, and the curve passes through their points (see
// update). There is one spread for all sizes, since a class has far too few measurements for an
// upper quantile.
//
// Forgetting: a class that is not measured loses half its weight with every four seconds and 32
// batches; once it is stale, the next measurement replaces it. Contradicted measurements are
// corrected at once. Where all sizes deviate by a common factor (a false alarm is rarer than one in
// hundreds of thousands of batches), earlier measurements are scaled by it (drift). Where one size
// deviates, its class forgets its earlier measurements (deviation). A point that a larger size has
// refuted is replaced by the next measurement (refute). After a drift or a deviation the other
// classes are doubted: they count only where nothing else is known.
//
// All times are in nanoseconds. A profile is not safe for concurrent use.
type profile struct {
	max            int  // the largest size allowed
	shared         bool // several servers decide which sizes are executed; see dropStale
	classes        []sizeClass
	largest        int // the largest measured size
	count          int // measurements ever
	contradictions int // number of contradictions so far

	recent [spreadSize]measurement // the latest measurements, the newest first
	n      int                     // how many of recent are in use
	off    deviation               // of all sizes
	// The mean time in ns that stalls have added to the latest excessBatches batches.
	excess float64

	// Derived by update.
	updated int64     // when update ran last
	median  []float64 // by size; median[0] is unused, larger sizes are extrapolated
	eager   []float64 // the median less its standard error
	slope   float64   // per row, beyond the last size
	spread  spread
	points  []point // scratch
}

const (
	updatePause = 1_000_000 // ns between updates once enough is known; see update
	// Bounds of a ratio and of a time, so that one absurd measurement cannot overflow anything.
	maxFactor = 1 << 10
	maxExec   = 1 << 50 // ns
	// Above this factor the replica has changed altogether, and nothing is scaled.
	anotherFactor = 1.5
)

func newProfile(maxRows int) profile {
	return profile{max: maxRows, spread: spread{upper: level{mul: 1}, body: 1, down: 1}}
}

// known reports whether there is any measurement.
func (p *profile) known() bool { return p.count > 0 }

// explored is the largest size that may be tried: at most double the largest measured one.
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

// planned is the upper quantile of the time of a batch of n rows.
func (p *profile) planned(n int) int64 { return int64(min(p.spread.upper.of(p.typical(n)), maxExec)) }

// unstalled is that quantile without the stalls, which smaller batches would not avoid.
func (p *profile) unstalled(n int) int64 { return int64(min(p.typical(n)*p.spread.body, maxExec)) }

// optimistic is a lower quantile of the time of a batch of n rows.
func (p *profile) optimistic(n int) int64 { return int64(min(p.typical(n)*p.spread.down, maxExec)) }

// learn adds the measurement that a batch of rows took ns, at time now.
func (p *profile) learn(rows int, ns, now int64) {
	if rows < 1 {
		return
	}
	ns = min(max(ns, 1), maxExec)
	// The first batch of a replica includes one-time costs: loading, compiling, filling caches. Its
	// time is used to plan the second batch, and then forgotten.
	if p.count == 1 {
		*p = profile{max: p.max, shared: p.shared, count: 1, classes: p.classes[:0], median: p.median[:0],
			eager: p.eager[:0], points: p.points[:0]}
	}
	ratio := 1.0
	if p.n > 0 {
		ratio = float64(ns) / p.typical(rows)
	}
	p.count++
	p.lag(float64(ns), p.typical(rows))
	grown := rows > p.largest
	p.largest = max(p.largest, rows)
	m := measurement{rows: rows, count: p.count, ns: float64(ns)}

	copy(p.recent[1:], p.recent[:spreadSize-1])
	p.recent[0] = m
	p.n = min(p.n+1, spreadSize)

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
	if c.n > 0 && c.weight(p, now) < freshWeight {
		c.forget(0)
		c.off = deviation{}
	}
	c.add(m)
	c.last, c.count, c.doubted = now, p.count, false

	upset := true
	// The transport time of a batch is not known more precisely than minOverhead.
	sigma := p.spread.sigma + float64(minOverhead)/p.typical(rows)
	// A size without measurements of its own is no evidence about the others.
	drifted := 0
	if known {
		drifted = p.off.observe(ratio, sigma)
	} else {
		p.off.pass()
	}
	if drifted > 0 {
		p.drift(min(drifted, p.n))
	} else if run := c.off.observe(ratio, sigma); run > 0 {
		c.forget(run)
		p.distrust(c, run)
		p.contradictions++
	} else {
		upset = false
	}
	if grown || upset || p.count < spreadSize || now-p.updated >= updatePause {
		p.update(now)
	}
}

// excessBatches are more than the recent measurements, which hardly have enough stalls for a mean.
const excessBatches = 256

// lag counts what a batch that typically takes so long took beyond that, if it stalled.
func (p *profile) lag(ns, typical float64) {
	x := 0.0
	if typical > 0 && ns > leastStall*typical {
		x = ns - typical
	}
	p.excess += (x - p.excess) / float64(min(p.count, excessBatches))
}

// drift scales earlier measurements by the deviation of the latest run measurements. Earlier means
// before the last time that one of the sizes in the run was measured without deviating. A size that
// was first measured after that is not scaled: it may have been measured after the drift, or there
// was no drift and the earlier measurement of the deviating size was stale. Scaling the other
// sizes, which were right, held a container of 120 ms at a tenth of its goodput for eight seconds.
func (p *profile) drift(run int) {
	var buf [spreadSize]float64
	off := buf[:run]
	for i, m := range p.recent[:run] {
		off[i] = m.ns / p.typical(m.rows)
	}
	slices.Sort(off)
	factor := min(max(off[run/2], 1.0/maxFactor), maxFactor)
	since := 0
	for _, m := range p.recent[:run] {
		since = max(since, p.classes[classOf(m.rows)].before(p.count-run))
	}
	if since == 0 { // the sizes in the run have no other measurements
		since = p.count - run
	}
	for i := range p.classes {
		c := &p.classes[i]
		if c.n > 0 && c.newest(c.n).count > since {
			continue
		}
		for j := range c.n {
			c.m[j].ns = min(max(c.m[j].ns*factor, 1), maxExec)
			c.sorted[j] = min(max(c.sorted[j]*factor, 1), maxExec)
		}
	}
	// The latest measurements are in their classes, too, and were scaled with the rest. In these
	// classes, only they remain, unscaled.
	for i := run - 1; i >= 0; i-- {
		p.classes[classOf(p.recent[i].rows)].forget(0)
	}
	for i := run - 1; i >= 0; i-- {
		p.classes[classOf(p.recent[i].rows)].add(p.recent[i])
	}
	p.distrust(nil, run)
	if factor > anotherFactor || factor < 1/anotherFactor {
		p.contradictions++
	}
}

// distrust marks every class as doubted, except the given one and those of the latest run
// measurements. The spread starts again from these measurements.
func (p *profile) distrust(but *sizeClass, run int) {
	for i := range p.classes {
		c := &p.classes[i]
		c.doubted = c != but && p.count-c.count >= run
		c.off = deviation{}
	}
	p.off = deviation{}
	p.n = min(p.n, run)
}
