package scheduler

import "time"

// A ceiling is the most rows that a replica can do at once, as far as its failures show: an
// accelerator runs out of memory above some size, and whoever serves it may not know which. The
// profile does not see that, as failures are not measured.
//
// No ceiling is for good. While more rows wait than it allows, a larger batch is tried: first half
// way to the smallest size that is known to fail, until that is next to the ceiling; then that
// size itself, now and then; and when it goes well, the double, at once.
// What that costs is bounded: a trial that fails is followed by a pause of some times what it took
// while the search lasts, of which there are only as many as there are doublings, and of many times
// that afterwards. With the long pause alone, a container of 120 ms a batch took a minute to find
// its size.
//
// That a batch failed says little, as one bad row makes any batch fail: lowering the ceiling
// then, as the first version did, made batches small where a hundredth of the rows was bad. It
// needs a failure whose rows have all been answered in smaller batches, or repeated ones of
// which nothing else came out.
type ceiling struct {
	rows   int   // 0: none
	broke  int   // a larger size that failed: the smallest one known; 0: none
	again  int64 // when there may be one
	proven int   // largest size answered since a size was at fault
	vague  int   // failures one after the other of which nothing came out
}

const (
	shortestPause = int64(time.Second)
	pauseFactor   = 64 // times what the failed batch took
	searchFactor  = 4  // ... while sizes between the ceiling and what failed are untried
	vagueFailures = 2  // ... that are put down to the size
)

// most bounds a batch that begins at start.
func (c *ceiling) most(start int64) int {
	switch {
	case start < c.again:
		return c.rows
	case c.broke == 0:
		return 2 * c.rows
	}
	return max(c.rows+1, (c.rows+c.broke)/2)
}

// sent notes a batch. While a trial is out there is no other.
func (c *ceiling) sent(rows int) {
	if c.rows > 0 && rows > c.rows {
		c.again = never
	}
}

// passed notes that a batch was answered. top is the most rows that the replica may have
// anyway.
func (c *ceiling) passed(rows, top int, now int64) {
	if rows > c.proven {
		c.proven = rows
		c.vague = 0
	}
	if c.rows == 0 || rows <= c.rows {
		return
	}
	c.rows, c.again = rows, now
	if rows < c.broke {
		return
	}
	c.broke = 0
	if c.rows >= top {
		c.rows = 0
	}
}

// plausible reports whether it may have been the size that a batch failed of. If batches as large
// were answered before, it was rather a row.
func (c *ceiling) plausible(rows int) bool { return rows > c.proven }

// failed notes that a batch failed which took so long: a trial has come to nothing, whatever
// the reason.
func (c *ceiling) failed(rows int, took, now int64) {
	if c.rows == 0 || rows <= c.rows {
		return
	}
	c.broke = rows
	c.again = now + c.pause(took)
}

// ended notes that a trial came to nothing that says anything: it was lost, or given up.
func (c *ceiling) ended(rows int, now int64) {
	if c.rows > 0 && rows > c.rows {
		c.again = now + shortestPause
	}
}

// fault notes that a batch of so many rows failed and its parts did not. Once may be chance, if
// that many were answered before.
func (c *ceiling) fault(rows int, took, now int64) {
	c.vague = 0
	switch {
	case c.rows > 0 && rows > c.rows: // failed has noted it
	case rows <= c.proven:
		c.proven = 0
	default:
		c.rows = max(1, rows/2, c.proven)
		c.broke = rows
		c.again = now + c.pause(took)
	}
}

// unclear notes that nothing came out of a failure: its rows were not tried again, or too late.
// If that is how failures of this size end, it is taken for at fault, as nothing would ever be
// learned otherwise.
func (c *ceiling) unclear(rows int, took, now int64) {
	if rows < 2 || !c.plausible(rows) {
		return
	}
	if c.vague++; c.vague >= vagueFailures {
		c.fault(rows, took, now)
	}
}

// clear notes that a failure was a row's.
func (c *ceiling) clear() { c.vague = 0 }

// pause is how long a trial that failed is not followed by another.
func (c *ceiling) pause(took int64) int64 {
	if c.broke > c.rows+1 {
		return searchFactor * took
	}
	return max(shortestPause, pauseFactor*took)
}
