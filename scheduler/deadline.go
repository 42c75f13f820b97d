package scheduler

// deadline is the default strategy: skip, don't drop.
//
// A window is a run of waiting rows in deadline order. The strategy sends the window with the
// highest rate: the expected number of rows answered in time, by the spread of the profile, over
// the expected execution time. The rows before it stay queued for another replica, or for a
// moment when they fit.
//
// Why not the largest batch for the head (EDF)? Under overload the head is always nearly late: it
// forces a small batch, which makes the next head later still. At 1.5 times the capacity EDF serves
// a tenth of the rows that can be served, and this strategy all of them (TestGoodputUnderOverload).
//
// Why not plan every row with the same upper quantile? The value of a row that may be late depends
// on the cost of its place. Where the time hardly grows with the rows, a row that is in time every
// other time is worth its place. Where the time does grow, or where enough rows that are certain to
// be in time wait, such a row is not.
//
// Among the windows of n rows, the one that begins latest has the most rows in time, but beginning
// after the first row that is certain to be in time gains nothing. So there is one window to
// evaluate for each n, and at best all its n rows are in time. Sizes are tried from the largest
// down, and this bound rules most of them out.
type deadline struct{}

// agreed is the share of the best window's rate that the size agreed on by all servers of a round
// must reach to be taken instead.
const agreed = 0.9

// lookahead is how many requests are tried as the first one of a size that they do not add up to.
const lookahead = 16

func (deadline) pick(q *queue, p *plan) (window, bool) {
	limit, why := p.bounded()
	var best window
	var bestRate float64
	for n := min(limit, q.rows); n >= 1; n-- {
		most := p.rate(n)
		if most <= bestRate {
			continue
		}
		at := p.startOf(q, n)
		for i := 0; i < lookahead && !q.end(at); i, at = i+1, q.next(at) {
			rows := q.fitting(at, n, limit)
			if rows == 0 {
				continue
			}
			if rate := p.rate(rows) * p.inTime(q, at, rows); rate > bestRate {
				best, bestRate = window{at: at, rows: rows, cap: limit}, rate
			}
			if rows == n {
				break
			}
		}
	}
	if bestRate == 0 {
		return window{}, false
	}
	p.best = p.whole(best.rows)
	if n := min(p.near(p.target), limit, q.rows); p.target > 0 && n != best.rows {
		at := p.startOf(q, n)
		if n = q.fitting(at, n, limit); n > 0 {
			if rate := p.rate(n) * p.inTime(q, at, n); rate >= agreed*bestRate {
				best, bestRate = window{at: at, rows: n, cap: limit}, rate
			}
		}
	}
	if w, ok := p.trying(q, best, bestRate); ok {
		return w, true
	}
	// Rows of lower priority may fill the room that is left.
	best.left = p.smaller(best.rows, min(limit, q.rows), bestRate)
	switch best.room = p.roomFor(q.item(best.at).deadline, best.rows, limit); {
	case best.room == limit:
		best.why = why
	case best.room > best.rows:
		best.why = CloseDeadline
	default:
		best.why = best.left
	}
	return best, true
}

// fitting is how many rows from a place on a batch for n rows has; 0: the first request has more.
// Requests are not divided, unless they have more than limit rows.
func (q *queue) fitting(at cursor, n, limit int) int {
	if q.items == q.rows {
		return n
	}
	rows := 0
	for ; !q.end(at) && rows < n; at = q.next(at) {
		switch more := q.item(at).rows(); {
		case more > limit && (rows > 0 || n == limit):
			return n
		case rows+more > n:
			return rows
		default:
			rows += more
		}
	}
	return rows
}

// smaller returns why a window of that many rows looks better than any larger one up to limit: the
// larger ones would have late rows, or no higher rate even if all their rows were in time.
func (p *plan) smaller(rows, limit int, rate float64) CloseReason {
	for n := limit; n > rows; n-- {
		if p.rate(n) > rate {
			return CloseDeadline
		}
	}
	if rows < limit {
		return CloseRate
	}
	return CloseDeadline
}

func (deadline) learn(int, int, int64) {}

func (deadline) limit(p *plan) int {
	n, _ := p.bounded()
	return n
}

// startOf is where a window of n rows begins: at the first row that is still in time if the batch
// takes as long as batches of that size sometimes do, or early enough to have n rows.
func (p *plan) startOf(q *queue, n int) cursor {
	at := q.first(p.endAt(n, spreadLevels-1))
	if q.rowsFrom(at) < n {
		at = q.back(n)
	}
	return at
}

// endAt is when a batch of n rows will be answered if its execution is at the given level of the
// spread.
func (p *plan) endAt(n, level int) int64 {
	return p.start + int64(min(p.prof.spread.levels[level].of(p.typical(n)), maxExec))
}

// inTime is the expected share of the n rows from c on that are in time as one batch.
func (p *plan) inTime(q *queue, c cursor, n int) float64 {
	from := q.rows - q.rowsFrom(c)
	head := q.item(c).deadline
	late := 0
	for level := spreadLevels - 1; level >= 0; level-- {
		end := p.endAt(n, level)
		if end <= head {
			break // with shorter executions all rows are in time
		}
		late += min(n, q.rows-q.rowsFrom(q.first(end))-from)
	}
	return 1 - float64(late)/float64(spreadLevels*n)
}

// batchCost is the server's own cost of a batch, in ns: lock, dispatch, write, answer. It matters
// where executions are equally short: sixteen batches of one must not look as good as one of
// sixteen.
const batchCost = 5_000

// rate is the rows per nanosecond of a batch. Without measurements, more rows are better.
func (p *plan) rate(rows int) float64 {
	t := 0.0
	if whole := p.whole(rows); whole < len(p.prof.eager) {
		t = p.prof.eager[whole]
	} else if t = p.prof.typical(whole); t <= 0 {
		return float64(rows)
	}
	return float64(rows) / (t + batchCost)
}

// roomFor is the largest size of at most limit, and at least room, that meets a deadline.
func (p *plan) roomFor(deadline int64, room, limit int) int {
	for room < limit && p.start+p.planned(room+1) <= deadline {
		room++
	}
	return room
}
