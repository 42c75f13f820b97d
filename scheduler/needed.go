package scheduler

import (
	"math"
	"sort"
)

// neededShare is the load at which a replica is counted on: at four fifths of what it can do, 99 %
// of the requests are answered in time (see the table in DESIGN.md), and at all of it the queue
// grows without bound.
const neededShare = 0.8

// needed is how many replicas like the live ones would hold the deadlines of what arrives:
//
//	needed = ⌈ (arriving + waiting ÷ patience) ÷ (0.8 × capacity) ⌉
//
// Arriving is the rows per second of the last minute, those of refused requests among them: they
// are what more replicas are wanted for. Waiting is the rows in the queue, and patience the mean
// time that the requests of that minute had until their deadlines, the objective if none had one:
// what waits has to be done by then, too. Capacity is the rows per second of the mean live
// replica, by its profile, at the largest batch that two of fit into the patience, since a row may
// find one executing and is in the next. The strategy's own limits hold for that batch.
//
// It is 0 if nothing arrived for a minute and nothing waits, and otherwise at least 1. Without a
// live replica, or before the first batch, nothing is known of the capacity, and it is 1.
func (c *core) needed(now int64) int {
	from, _ := c.past.recent(now, &c.stats)
	recent, span := &c.stats, now-from.at
	arrived := float64(recent.arrived - from.arrived)
	if span > pastSpan+pastPause { // what the marks tell is older than a minute
		arrived = 0
	}
	if arrived == 0 && c.rows == 0 {
		return 0
	}
	patience := float64(c.cfg.Objective)
	if bound := recent.bound - from.bound; bound > 0 {
		patience = 1e3 * float64(recent.given-from.given) / float64(bound)
	}
	capacity, known := 0.0, 0
	for _, r := range c.replicas {
		if r.state == replicaLive && r.profile.known() {
			capacity += r.capacity(c, patience)
			known++
		}
	}
	if known == 0 || capacity == 0 {
		return 1
	}
	rate := arrived/math.Max(float64(span), 1e9) + float64(c.rows)/math.Max(patience, 1e6)
	return max(1, int(math.Ceil(min(rate/(neededShare*capacity/float64(known)), math.MaxInt32))))
}

// capacity is how many rows the replica executes per nanosecond, in batches that take at most half
// of patience, or of one row if even that takes more.
func (r *Replica) capacity(c *core, patience float64) float64 {
	limit := r.strategy.limit(r.plan(c, 0, 0))
	rows := max(1, sort.Search(limit, func(n int) bool { return 2*float64(r.profile.planned(n+1)) > patience }))
	if t := r.profile.typical(rows); t > 0 {
		return float64(rows*r.concurrency) / t
	}
	return 0
}

// arrive counts a request, whatever becomes of it.
func (c *counters) arrive(r *Request, now int64) {
	c.arrived += uint64(r.Rows)
	if r.deadline != never && r.deadline > now {
		c.bound++
		c.given += uint64(r.deadline-now) / 1e3
	}
}
