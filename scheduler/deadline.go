package scheduler

// deadline is the default strategy: skip, don't drop.
//
// A window is a run of waiting rows in deadline order. The strategy sends the one with the most
// rows answered in time, as expected from the spread of the profile, per time that it is
// expected to take. The rows before it stay for another replica, or for a moment when they fit.
//
// Why not the largest batch for the head (EDF)? Under overload the head is always late: it
// forces a small batch, which makes the next head later still. At 1.5 times the capacity that
// delivers a tenth of what can be delivered; this delivers all of it
// (TestGoodputUnderOverload).
//
// Why not plan every row with the same upper quantile? What a doubtful row is worth depends on
// what its place costs. Where time hardly grows with the rows, one that makes it every other
// time is worth having, as there are no better ones; where it does, or where enough rows wait
// that are sure, it is not.
//
// Of the windows of n rows the one that begins latest has the most rows in time; but beginning
// later than with the first row that is sure gains nothing. So there is one window to look at
// for each n, and it cannot be better than n rows in time. Sizes are tried from the largest
// down, and most are not worth a look.
type deadline struct{}

// lookahead is how many requests too large for the size at hand are stepped over.
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
		at := q.first(p.at(n, spreadLevels-1))
		if q.rowsFrom(at) < n {
			at = q.back(n)
		}
		for i := 0; i < lookahead && !q.end(at) && min(q.item(at).rows(), limit) > n; i++ {
			at = q.next(at)
		}
		if q.end(at) || min(q.item(at).rows(), limit) > n {
			continue
		}
		if rate := most * p.inTime(q, at, n); rate > bestRate {
			best, bestRate = window{at: at, rows: n, cap: limit}, rate
		}
	}
	if bestRate == 0 {
		return window{}, false
	}
	if w, ok := p.trying(q, best, bestRate); ok {
		return w, true
	}
	// How many rows more there would be room for lets rows of lower priority join.
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

// smaller says why a window of so many rows looks better than any larger one of at most limit:
// those would have late rows, or they would answer no more rows per nanosecond if all were in
// time.
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

// at is when a batch of n rows will be answered if its execution is of that level of the spread.
func (p *plan) at(n, level int) int64 {
	return p.start + int64(min(p.prof.spread.levels[level].of(p.prof.typical(n)), maxExec))
}

// inTime is the share of the n rows at c and behind it that is expected to be in time in one batch.
func (p *plan) inTime(q *queue, c cursor, n int) float64 {
	from := q.rows - q.rowsFrom(c)
	head := q.item(c).deadline
	late := 0
	for level := spreadLevels - 1; level >= 0; level-- {
		end := p.at(n, level)
		if end <= head {
			break // with shorter executions all are in time
		}
		late += min(n, q.rows-q.rowsFrom(q.first(end))-from)
	}
	return 1 - float64(late)/float64(spreadLevels*n)
}

// batchCost is what a batch costs the server itself, in ns: to lock, dispatch, write, answer.
// It counts where executions are as short: sixteen batches of one must not look as good as one
// of sixteen.
const batchCost = 5_000

// rate is rows per nanosecond of a batch; with nothing known, more rows are better.
func (p *plan) rate(rows int) float64 {
	t := 0.0
	if rows < len(p.prof.eager) {
		t = p.prof.eager[rows]
	} else if t = p.prof.typical(rows); t <= 0 {
		return float64(rows)
	}
	return float64(rows) / (t + batchCost)
}

// roomFor is the largest size of at most limit, and at least room, that meets a deadline.
func (p *plan) roomFor(deadline int64, room, limit int) int {
	for room < limit && p.start+p.prof.planned(room+1) <= deadline {
		room++
	}
	return room
}
