package sim

import (
	"math"
	"slices"
	"sort"
	"time"
)

// AtOnce simulates sending at once: a free replica takes the waiting rows, oldest first.
func AtOnce(c Cell) *Result {
	return replay(c, func(waiting []arrival, _ time.Duration) (first, rows int) {
		return 0, min(len(waiting), MaxBatch)
	})
}

// headShares are candidates for the share of the best window's rate that the head's own window must
// reach to be sent instead. The right share depends on future arrivals, which the oracle does not
// know: in each cell it uses the best of these.
var headShares = []float64{0.8, 0.9, 0.95, 0.98, 1}

// Oracle simulates a scheduler that knows the true profile and tries all windows: for every run
// of waiting rows in deadline order it knows the expected number of rows answered in time and the
// execution time. It sends the window with the most rows in time per unit of time.
func Oracle(c Cell) *Result {
	var best *Result
	for _, share := range headShares {
		o := oracle{c, share, nil}
		if r := replay(c, o.pick); best == nil || r.Good > best.Good {
			best = r
		}
	}
	return best
}

type oracle struct {
	Cell
	headShare float64
	good      []float64
}

func (o *oracle) pick(waiting []arrival, now time.Duration) (first, rows int) {
	// Skip rows that are late even in the best case.
	hopeless := sort.Search(len(waiting), func(i int) bool {
		return waiting[i].deadline-now > time.Duration(o.at(1, now)*(1-3*o.Noise))
	})
	if hopeless == len(waiting) {
		return 0, 0
	}
	look := waiting[hopeless:]
	most := min(MaxBatch, len(look))
	likely := func(i int, base float64) float64 { return o.within(float64(look[i].deadline-now), base) }
	var head float64
	var headRows int
	for n := most; n >= 1; n-- { // among equal rates the smallest batch wins
		base := o.at(n, now)
		mean := o.mean(base)
		last := likely(n-1, base) // the likeliest, since rows are in deadline order
		worth := head * mean
		if float64(n)*last < worth {
			continue
		}
		good := 0.0
		for i := range n {
			p := likely(i, base)
			if p == last { // so are all rows between
				good += float64(n-i) * last
				break
			}
			if good += p; good+float64(n-i-1)*last < worth {
				break
			}
		}
		if rate := good / mean; rate > 0 && rate >= head {
			head, headRows = rate, n
		}
	}
	best := head
	first, rows = 0, headRows
	for n := most; n >= 1; n-- {
		base := o.at(n, now)
		mean := o.mean(base)
		last := likely(len(look)-1, base)
		if float64(n)*last/mean <= best { // not even if all rows are as likely as the last
			continue
		}
		// good[j] is the expected number of the first j rows that are in time in a batch of n. From
		// the first row that is as likely as the last, all are, so no later row begins a better
		// window.
		o.good = append(o.good[:0], 0)
		sum := 0.0
		for j := range look {
			p := likely(j, base)
			if p == last {
				break
			}
			sum += p
			o.good = append(o.good, sum)
		}
		level := len(o.good) - 1
		until := func(j int) float64 { return o.good[min(j, level)] + last*float64(max(0, j-level)) }
		for i := 0; i <= level && i+n <= len(look); i++ {
			if rate := (until(i+n) - until(i)) / mean; rate > best*(1+1e-9) {
				best, first, rows = rate, i, n
			}
		}
	}
	if head >= o.headShare*best {
		first, rows = 0, headRows
	}
	return hopeless + first, rows
}

// replay runs the cell with a rule instead of the scheduler: pick gets the waiting rows in
// deadline order, and chooses a batch for a free replica, or none if it returns 0 rows. Rows that
// wait past their deadlines are dropped.
func replay(c Cell, pick func(waiting []arrival, now time.Duration) (first, rows int)) *Result {
	res := &Result{cell: c}
	type replica struct {
		*clockwork
		free time.Duration
	}
	var replicas []*replica
	for _, w := range c.clockworks() {
		replicas = append(replicas, &replica{w, 0})
	}
	trace := c.arrivals()
	var waiting []arrival
	for now := time.Duration(0); len(trace) > 0 || len(waiting) > 0; {
		for len(trace) > 0 && trace[0].at <= now {
			at := sort.Search(len(waiting), func(i int) bool { return waiting[i].deadline > trace[0].deadline })
			waiting = slices.Insert(waiting, at, trace[0])
			trace = trace[1:]
		}
		for len(waiting) > 0 && waiting[0].deadline <= now {
			res.row(waiting[0], now, false)
			waiting = waiting[1:]
		}
		soonest := time.Duration(math.MaxInt64)
		for _, r := range replicas {
			if r.free <= now && len(waiting) > 0 {
				if first, rows := pick(waiting, now); rows > 0 {
					r.free = now + r.next(rows, now)
					for _, a := range waiting[first : first+rows] {
						res.row(a, r.free, true)
					}
					res.batch(now, rows)
					waiting = slices.Delete(waiting, first, first+rows)
				}
			}
			if r.free > now {
				soonest = min(soonest, r.free)
			}
		}
		if len(waiting) == 0 || soonest == math.MaxInt64 {
			if len(trace) > 0 {
				now = trace[0].at
				continue
			}
			if len(waiting) > 0 {
				now = waiting[0].deadline
				continue
			}
			break
		}
		// Nothing can be sent before a replica is free, so rows that arrive until then are added
		// together. An idle replica gets the first row that arrives at once.
		idle := slices.ContainsFunc(replicas, func(r *replica) bool { return r.free <= now })
		if idle && len(trace) > 0 {
			soonest = min(soonest, trace[0].at)
		}
		now = soonest
	}
	return res.done()
}
