package scheduler

import "slices"

// A profile is what is known of a replica's execution time by batch size, learned online: a curve,
// which says what a batch of each size takes in the median, and a spread, which says by how much
// batches differ from it.
//
// Sizes fall into classes, eight to the doubling, and the curve goes through their points (see
// update). The spread is one for all sizes, as a class alone has far too few measurements for an
// upper quantile.
//
// Forgetting: the memory of a class loses weight against those that are measured, by half with
// every four seconds and 32 batches, and in the end the next measurement takes its place. What
// is contradicted goes at once: where all sizes together are off by a factor, by less than one
// in hundreds of thousands by chance, what was measured before is scaled by it (drift); where
// one size is off, its class forgets what was before (deviation); and what a larger size has
// refuted since is forgotten with the next measurement (refute). After the first two the other
// classes are hearsay: they count where nothing else is known.
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

const (
	updatePause   = 1_000_000 // ns between updates once enough is known; see update
	maxFactor     = 1 << 10   // bounds a ratio, so that one absurd measurement cannot overflow anything
	maxExec       = 1 << 50   // ns, likewise
	anotherFactor = 1.5       // a drift by more is no drift: the replica is another one
)

func newProfile(maxRows int) profile {
	return profile{max: maxRows, spread: spread{upper: level{mul: 1}, body: 1, down: 1}}
}

// known reports whether anything was measured.
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
	m := measurement{rows: rows, count: p.count, ns: float64(ns)}

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
	} else {
		p.off.pass()
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

// drift scales what was measured before by how far the last measurements were off. Before is
// the last time that one of their sizes was measured and was not off. A size that is known only
// since then stays as it is: it may have been measured after the drift. Or there was none, and
// that size was last measured when all else was forgotten: scaling others that were right held
// a container of 120 ms at a tenth of its goodput for eight seconds.
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
	if since == 0 { // they are all that is remembered of their sizes
		since = p.count - run
	}
	for i := range p.classes {
		c := &p.classes[i]
		if c.kept > 0 && c.newest(c.kept).count > since {
			continue
		}
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
