package scheduler

import (
	"math"
	"slices"
)

// A point is the curve's summary of one class.
type point struct {
	class  *sizeClass
	rows   float64 // mean size
	ns     float64
	own    float64 // ns as measured, before lean
	weight float64 // in measurements
	sigma  float64 // their standard deviation, as a share of ns
	sure   bool    // sigma is the class's own, not that of all sizes
	since  int     // the profile's count when half of the class's measurements had been made
}

const (
	agreeCount    = 3     // from this many on, agreement in a class is not chance
	leanReach     = 2.5   // largest ratio between the sizes of neighbours
	leanWeight    = 8     // weight of the line through the neighbours, in measurements ...
	leanError     = 0.1   // ... more if the noise exceeds this deviation of the curve from a line
	farSigmas     = 5     // a larger difference is a contradiction
	untriedWeight = 0.25  // measurements assumed for a size without any, for standard errors
	maxDoubt      = 0.1   // share of a median: its largest assumed error
	minDoubt      = 0.001 // ... and the smallest
)

// variance is the variance of the point's time, relative to the square of that time.
func (at *point) variance() float64 { return at.sigma * at.sigma / max(at.weight, 1) }

// far is the factor beyond which neither that variance nor the curvature of the curve explains a
// difference.
func far(variance float64) float64 {
	return math.Exp(farSigmas * math.Sqrt(variance+leanError*leanError))
}

// update recomputes the median times and the spread. It makes the points of the classes
// consistent: points that newer measurements refute are dropped, points of few measurements lean
// on their neighbours, and neighbours out of order are replaced by their weighted average (pool
// adjacent violators). Between points the time is linear.
//
// update takes about 8 µs, which is much for a container that answers in 10. So fast batches share
// an update when it is not expected to change anything; after a batch of a millisecond or more
// there is always one.
func (p *profile) update(now int64) {
	p.updated = now
	p.points = p.points[:0]
	for i := range p.classes {
		c := &p.classes[i]
		if c.n == 0 {
			continue
		}
		pt := point{class: c, weight: c.weight(p, now), sigma: p.spread.sigma, since: c.since()}
		pt.rows, pt.ns = c.point()
		if pt.sure = c.n >= agreeCount; pt.sure {
			pt.sigma = min(pt.sigma, c.sigma())
		}
		p.points = append(p.points, pt)
	}
	if p.shared {
		p.dropStale()
	}
	p.trimStale()
	p.refute()
	p.lean()
	p.monotone()
	p.interpolate()
	p.spread.derive(p)
	p.encourage(now)
}

// dropStale drops stale points if there is a fresh one. All servers of a shared container decide
// which sizes it executes, so a size that only one of them is wrong about may never be measured.
// Without old points the curve is that of a server that has just started.
func (p *profile) dropStale() {
	stale := func(at point) bool { return at.weight < freshWeight }
	if slices.ContainsFunc(p.points, func(at point) bool { return !stale(at) }) {
		p.points = slices.DeleteFunc(p.points, stale)
	}
}

// trimStale bounds stale points by the fresh ones around them: one batch of 2n rows takes no
// longer than two of n, and no batch takes longer than a larger one.
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

// refute drops points that a more recent, shorter measurement of a larger size contradicts: no
// batch takes longer than a larger one, and outliers are long, not short. The next measurement
// replaces a refuted point. The spread forgets the measurements before the contradiction, since
// they deviate from the present curve. Without refute, 31 old batches of five rows outweighed
// single measurements of larger sizes, and held a container at 0.83 of its goodput for ten seconds.
func (p *profile) refute() {
	for i := range p.points {
		at := &p.points[i]
		for j := i + 1; j < len(p.points); j++ {
			o := &p.points[j]
			if o.ns >= at.ns || o.since <= at.since || o.ns*far(o.variance()+at.variance()) >= at.ns {
				continue
			}
			at.ns, at.weight = o.ns, min(at.weight, doubtedWeight)
			if !at.class.doubted {
				at.class.doubted = true
				p.n = min(p.n, p.count-at.since)
			}
		}
	}
}

// lean pulls each point towards the line through its neighbours: the points from about half to
// about double its size. The line has the weight of a few measurements, so a point of many
// measurements hardly moves, while a single unlucky measurement does not keep a strategy from a
// size for good. Outliers are long and rare. So a point far below the line does not lean on it, and
// neither does a point far above it that has a few measurements that agree: the line may lead
// through stale points.
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
			// det/xx is the weight of the line at this size. A single old measurement beyond
			// another neighbour determines a slope, but hardly the value here.
			lean := min(det/xx, leanWeight+p.spread.sigma*p.spread.sigma/(leanError*leanError))
			if f := far(at.variance()); at.own*f < line || at.sure && at.own > line*f {
				continue
			}
			at.ns = (at.own*at.weight + line*lean) / (at.weight + lean)
		}
	}
}

// monotone makes the points' times rise with the size: it replaces neighbours out of order by their
// average.
func (p *profile) monotone() {
	pts := p.points
	for i := 1; i < len(pts); i++ {
		// Pool backwards while the order is violated. Pooled points retain their sizes and share
		// one time.
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

// interpolate computes the median time of every size up to the largest that may be tried.
func (p *profile) interpolate() {
	pts := p.points
	limit := p.explored()
	p.median = slices.Grow(p.median[:0], limit+1)[:limit+1]
	first, last := pts[0], pts[len(pts)-1]
	// Beyond the last point, extrapolate the line through it and a point of about half its size,
	// with at least a quarter of the proportional slope: two points at the same height do not
	// prove that larger sizes cost nothing. With a single point, time is assumed proportional.
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

// encourage computes the times by which sizes are compared: the median less its standard error.
// Otherwise a size that was unlucky when it was tried, or never tried, would not be tried again.
func (p *profile) encourage(now int64) {
	p.eager = append(p.eager[:0], p.median...)
	class, share := -1, 1.0
	for n := 1; n < len(p.eager); n++ {
		if k := classOf(n); k != class {
			class = k
			weight := untriedWeight
			if k < len(p.classes) && p.classes[k].n > 0 {
				weight = max(p.classes[k].weight(p, now), untriedWeight)
			}
			share = 1 - min(max(p.spread.sigma/math.Sqrt(weight), minDoubt), maxDoubt)
		}
		p.eager[n] *= share
	}
}
