package scheduler

import (
	"math"
	"slices"
)

// A point is what the curve has of a class.
type point struct {
	class  *sizeClass
	rows   float64 // in the mean
	ns     float64
	own    float64 // ns as measured, before it leant on its neighbours
	weight float64 // in measurements
	sigma  float64 // by how much they differ, as a standard deviation and a share of ns
	sure   bool    // that is known of the class itself, and not only of all sizes
	since  int     // measurements of the profile when half of the class's were made
}

const (
	surelyKept    = 3     // from here on, measurements of a class that are alike are not so by chance
	leanReach     = 2.5   // how many times as large, or as small, a neighbour is at most
	leanWeight    = 8     // measurements, that the line through the neighbours is worth ...
	leanError     = 0.1   // ... and more, the more the noise exceeds what the curve may differ from a line
	farSigmas     = 5     // what differs by more contradicts
	untriedWeight = 0.25  // measurements that a size without any stands for, in standard errors
	maxDoubt      = 0.1   // of a median, that it may be wrong by at most
	minDoubt      = 0.001 // ... and at least
)

// variance is that of the point, as a share of it.
func (at *point) variance() float64 { return at.sigma * at.sigma / max(at.weight, 1) }

// far is the factor by which what has that variance is not off by chance, nor because the curve
// is no line.
func far(variance float64) float64 {
	return math.Exp(farSigmas * math.Sqrt(variance+leanError*leanError))
}

// update derives the median times and the spread. The points of the classes are made to agree with
// each other: what newer measurements refute is dropped, points of few measurements lean on their
// neighbours, and they are made monotone by weighted averaging of neighbours that contradict each
// other (pool adjacent violators). Between points the time is linear.
//
// It takes about 8 µs, much for a container that
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
		pt := point{class: c, weight: c.weight(p, now), sigma: p.spread.sigma, since: c.since()}
		pt.rows, pt.ns = c.point()
		if pt.sure = c.kept >= surelyKept; pt.sure {
			pt.sigma = min(pt.sigma, c.sigma())
		}
		p.points = append(p.points, pt)
	}
	p.trimStale()
	p.refute()
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

// refute drops points that a larger size contradicts which was measured since: no batch takes
// longer than a larger one, and bad luck is long. They are as old beliefs are: the next
// measurement replaces them. The spread forgets what was measured until then, which differs
// from the curve of today. Without this a memory of 31 batches of five rows stood against all
// that was measured once of larger ones, and held a container at 0.83 of its goodput for ten
// seconds.
func (p *profile) refute() {
	for i := range p.points {
		at := &p.points[i]
		for j := i + 1; j < len(p.points); j++ {
			o := &p.points[j]
			if o.ns >= at.ns || o.since <= at.since || o.ns*far(o.variance()+at.variance()) >= at.ns {
				continue
			}
			at.ns, at.weight = o.ns, min(at.weight, hearsayWeight)
			if !at.class.hearsay {
				at.class.hearsay = true
				p.kept = min(p.kept, p.count-at.since)
			}
		}
	}
}

// lean draws each point towards the line through its neighbours, those of less than about
// double or half its size, with the weight of a few measurements. A point of many stands; one
// of a single unlucky measurement would else keep a strategy from its size for good. Bad luck
// is long, and it is rare: what is far shorter than the line does not lean on it, nor does what
// was measured so a few times, as these lines may lead through beliefs that nothing has put
// right yet.
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
			// The line is known as well here as so many measurements of the size would be: a
			// single old one beyond another neighbour tells its slope, but next to nothing of
			// where it leads.
			lean := min(det/xx, leanWeight+p.spread.sigma*p.spread.sigma/(leanError*leanError))
			if f := far(at.variance()); at.own*f < line || at.sure && at.own > line*f {
				continue
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
