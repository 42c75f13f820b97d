package scheduler

import "time"

// A ceiling is the largest batch that a replica can execute, as far as its failures show: an
// accelerator runs out of memory above some size, and its operator may not know which. The
// profile does not show that, as it measures answers only.
//
// No ceiling is permanent. While more rows wait than it allows, a larger batch is tried: first half
// way to the smallest size that is known to fail, until that size is next to the ceiling; then that
// size itself, now and then; and after a success double the size, at once. The cost is bounded:
// after a failed trial comes a pause of searchFactor times its duration during the search, which
// has at most as many steps as there are doublings, and of pauseFactor times after it. With the
// long pause alone, a container of 120 ms a batch took a minute to find its size.
//
// One failed batch proves little, since a single bad row fails any batch. Lowering the ceiling at
// every failure, as the first version did, made batches small where one row in a hundred was bad.
// The ceiling falls only when all rows of a failed batch were then answered in smaller ones, or
// when failures repeat and their retries are inconclusive.
type ceiling struct {
	rows   int   // the ceiling; 0: none
	broke  int   // a larger size that failed: the smallest one known; 0: none
	next   int64 // when the next trial may be sent
	proven int   // largest size answered since the last ceiling was found
	vague  int   // consecutive failures whose retries were inconclusive
}

const (
	shortestPause = int64(time.Second)
	pauseFactor   = 64 // times the duration of the failed batch
	searchFactor  = 4  // ... while sizes between the ceiling and the failed one are untried
	vagueFailures = 2  // ... that are attributed to the size
)

// most bounds a batch that begins at start.
func (c *ceiling) most(start int64) int {
	switch {
	case start < c.next:
		return c.rows
	case c.broke == 0:
		return 2 * c.rows
	}
	return max(c.rows+1, (c.rows+c.broke)/2)
}

// sent records a batch. There is one trial at a time.
func (c *ceiling) sent(rows int) {
	if c.rows > 0 && rows > c.rows {
		c.next = never
	}
}

// passed records an answered batch. top is the largest batch that the replica may get without a
// ceiling.
func (c *ceiling) passed(rows, top int, now int64) {
	if rows > c.proven {
		c.proven = rows
		c.vague = 0
	}
	if c.rows == 0 || rows <= c.rows {
		return
	}
	c.rows, c.next = rows, now
	if rows < c.broke {
		return
	}
	c.broke = 0
	if c.rows >= top {
		c.rows = 0
	}
}

// plausible reports whether the size may have made a batch fail. If batches as large were
// answered before, a row is more likely.
func (c *ceiling) plausible(rows int) bool { return rows > c.proven }

// failed records a batch that failed after took. If it was a trial, the trial has ended, whatever
// the reason.
func (c *ceiling) failed(rows int, took, now int64) {
	if c.rows == 0 || rows <= c.rows {
		return
	}
	c.broke = rows
	c.next = now + c.pause(took)
}

// ended records a trial without a result: it was lost or given up.
func (c *ceiling) ended(rows int, now int64) {
	if c.rows > 0 && rows > c.rows {
		c.next = now + shortestPause
	}
}

// fault records that a batch failed and its parts did not. A single such failure may be chance if
// batches as large were answered before.
func (c *ceiling) fault(rows int, took, now int64) {
	c.vague = 0
	switch {
	case c.rows > 0 && rows > c.rows: // recorded by failed
	case rows <= c.proven:
		c.proven = 0
	default:
		c.rows = max(1, rows/2, c.proven)
		c.broke = rows
		c.next = now + c.pause(took)
	}
}

// unclear records a failure whose rows were not tried again in time, so that its cause is
// unknown. When that repeats, the size is blamed; otherwise nothing would ever be learned of it.
func (c *ceiling) unclear(rows int, took, now int64) {
	if rows < 2 || !c.plausible(rows) {
		return
	}
	if c.vague++; c.vague >= vagueFailures {
		c.fault(rows, took, now)
	}
}

// clear records that a row caused a failure.
func (c *ceiling) clear() { c.vague = 0 }

// pause is the time between a failed trial and the next.
func (c *ceiling) pause(took int64) int64 {
	if c.broke > c.rows+1 {
		return searchFactor * took
	}
	return max(shortestPause, pauseFactor*took)
}
