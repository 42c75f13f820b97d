package scheduler

// deadline is the default strategy: skip, don't drop.
//
// Among the waiting rows in deadline order, for each possible first row i let n(i) be the largest batch
// beginning there whose predicted time still meets row i's deadline. The window with the highest rate
// n(i)/t(n(i)) is best. The head's own window is sent if its rate is within 10 % of the best, else the
// best one; the rows before it stay for another replica, or for a moment when they fit.
//
// Why not the largest batch for the head (EDF)? Under overload the head is always late: it forces a small
// batch, which makes the next head later still. At 1.5 times the capacity that delivers a tenth of what
// can be delivered; this delivers all of it (TestGoodputUnderOverload).
//
// Trying every row with a search for n(i) would cost 10,000 searches for 10,000 waiting rows. But as the
// deadlines rise with i, so does n(i), and of all rows with the same n(i) the first one is as good as any.
// So it is enough to walk the sizes upwards, and to find for each the first row that can afford it, moving
// only forward through the queue: one pass over at most max sizes and the blocks' last deadlines.
type deadline struct{}

// headShare is how much of the best rate the head's own window must reach to be sent.
const headShare = 0.95

// untriedShare is the time of a batch larger than any measured, as a share of what the profile suggests.
const untriedShare = 0.9

// lookahead is how many requests too large for the size at hand are stepped over.
const lookahead = 16

func (deadline) pick(q *queue, p *plan) (window, bool) {
	limit, why := p.bounded()
	var head, best, w window // w is the window of the row at hand, as large as was found yet
	var bestRate float64
	compare := func() {
		if w.rows == 0 {
			return
		}
		if q.item(w.at) == q.head() {
			head = w
		}
		if rate := p.rate(w.rows); rate > bestRate {
			best, bestRate = w, rate
		}
	}
	at := q.start()
	for n := 1; n <= limit; n++ {
		at = q.seek(at, p.start+p.prof.planned(n))
		if q.end(at) {
			break
		}
		first := at
		for i := 0; i < lookahead && !q.end(first) && min(q.item(first).rows(), limit) > n; i++ {
			first = q.next(first)
		}
		if q.end(first) || min(q.item(first).rows(), limit) > n {
			continue
		}
		if first != w.at {
			compare()
		}
		rows := min(n, q.rowsFrom(first))
		w = window{at: first, rows: rows, room: n, cap: limit, why: CloseDeadline}
		if rows < n && first == at {
			// The queue ends within this window, and behind its first row it ends sooner still.
			break
		}
	}
	compare()
	if bestRate == 0 {
		return window{}, false
	}
	w = best
	if head.rows > 0 && p.rate(head.rows) >= headShare*bestRate {
		w = head
	}
	// How many rows more there would be room for says why the batch is not larger, and lets rows of lower
	// priority join.
	if w.room = p.roomFor(q.item(w.at).deadline, w.room, limit); w.room == limit {
		w.why = why
	}
	return w, true
}

func (deadline) learn(int, int, int64) {}

func (deadline) limit(p *plan) int {
	n, _ := p.bounded()
	return n
}

// rate is rows per nanosecond of a batch; with nothing known, more rows are better. Sizes that were never
// tried are taken to be a little better than the profile suggests, or they never would be: from batches of
// one alone it concludes that two take twice as long.
func (p *plan) rate(rows int) float64 {
	t := p.prof.typical(rows)
	if t <= 0 {
		return float64(rows)
	}
	if rows > p.prof.largest {
		t *= untriedShare
	}
	return float64(rows) / t
}

// roomFor is the largest size of at most limit, and at least room, that meets a deadline.
func (p *plan) roomFor(deadline int64, room, limit int) int {
	for room < limit && p.start+p.prof.planned(room+1) <= deadline {
		room++
	}
	return room
}
