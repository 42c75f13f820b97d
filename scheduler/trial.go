package scheduler

// Trials are batches of a size other than the best known one. The profile may believe that larger
// sizes take too long for the objective or the deadlines, or have a lower rate. If that belief
// alone decided whether they are tried, a wrong one would never be corrected. The same holds for
// smaller sizes while the queue is long. So while rows wait, sizes from half to double the best
// one are tried in turn, and their cost is counted: the time of a trial beyond the time that the
// rows it answered in time take in batches of the best size. A trial with a cost is paid off by a
// share of the replica's working time before the next one. A trial with a gain is followed by the
// next at once, a larger one by one of twice the rows. That is the only bound: no size and no
// number of failures ends the trials.
//
// The best known size may itself be wrong. So a debt is not stored as time but as time spent and
// rows answered, and is recomputed whenever a trial is considered. Otherwise a container that took
// 120 ms for any number of rows, and was believed to take 14 ms, owed seven seconds of work for a
// trial of 117 ms that was worth its time.
type trials struct {
	spent          float64 // ns that trials took and that are not paid off
	rows           float64 // rows answered in time by those trials
	turn           int     // of trialSteps
	best           int     // the best known size at the latest trial
	tried          int     // ... and the size of that trial
	gained         bool    // it had a gain
	losses         int     // number of trials without a gain
	divided        float64 // ns of trials that divided callers and that are not paid off
	contradictions int     // contradictions of the profile at the latest check
}

// trialSteps are the sizes of successive trials, in quarters of a doubling from the best known
// size.
var trialSteps = [...]int{4, -1, 1, -2, 2, -3, 3, -4}

const (
	trialShare   = 0.06 // initial share of the replica's working time that trials may cost
	trialRound   = 3    // this many trials without a gain halve it
	trialBackoff = 4    // ... at most this many times
	// Callers that a smaller batch leaves out lose a whole cycle: share of the working time that
	// such trials may take.
	dividedShare = 0.005
	trialGain    = 0.15 // share of its time that a trial must gain for another to follow at once
)

// next is the size of the next trial, in quarters of a doubling from the best known size, which
// has the given rate in rows per nanosecond; 0: no trial now.
func (t *trials) next(rate float64) int {
	if t.spent*rate > t.rows {
		return 0
	}
	return trialSteps[t.turn]
}

// unmoved reports whether a trial had a gain, yet n rows still are the best known size; then a
// batch of n rows is measured next. Otherwise a size that is wrongly believed to be the largest
// within the objective was never sent itself: each batch was a trial of twice its rows, with a
// gain.
func (t *trials) unmoved(n int) bool {
	unmoved := t.gained && max(n-t.best, t.best-n) <= max(n-t.tried, t.tried-n)
	t.gained = t.gained && !unmoved
	return unmoved
}

// work pays off debt with a batch that took ns. A contradiction in the profile cancels the debt,
// which was computed from the old belief.
func (t *trials) work(ns int64, contradictions int) {
	t.spent -= trialShare * float64(ns) / float64(int(1)<<min(t.losses/trialRound, trialBackoff))
	if t.spent <= 0 {
		t.spent, t.rows = 0, 0
	}
	t.divided = max(0, t.divided-dividedShare*float64(ns))
	if contradictions != t.contradictions {
		t.spent, t.rows, t.contradictions = 0, 0, contradictions
	}
}

// decide counts the cost of a trial that took ns for rows. bestTime is the time of as many rows in
// batches of the best known size. late: at least half of the rows were answered too late. A stall
// of the usual length does not count: it would have hit any other batch as well.
func (t *trials) decide(ns int64, rows int, bestTime, stall float64, late bool) {
	took, had := float64(ns), float64(rows)
	if took-bestTime > stall/2 {
		took = max(0, took-stall)
	}
	cost := took - bestTime
	if late {
		cost, had = took, 0
	}
	if t.gained = cost <= -trialGain*bestTime; t.gained {
		if t.spent += cost; t.spent <= 0 { // a gain pays for earlier costs
			t.spent, t.rows = 0, 0
		}
		if t.turn++; trialSteps[t.turn-1] > 0 || t.turn == len(trialSteps) {
			t.turn = 0
		}
		return
	}
	if t.spent*float64(rows) <= t.rows*bestTime { // the trials before it were worth their time
		t.spent, t.rows = 0, 0
	}
	if cost > 0 {
		t.spent += took
		t.rows += had
	}
	t.losses++
	t.turn = (t.turn + 1) % len(trialSteps)
}

// failed counts the cost of a trial that failed after ns: its rows have to be executed again.
func (t *trials) failed(b *Batch, ns int64) {
	if b.bestTime > 0 {
		t.decide(ns+int64(b.bestTime), b.Rows, b.bestTime, 0, true)
	}
}

// trying returns the window for a trial. best is the best known window, and rate its expected rows
// per nanosecond.
func (p *plan) trying(q *queue, best window, rate float64) (window, bool) {
	n, rows := best.rows, q.rows
	if p.ceiling > 0 && (n >= p.ceiling || rows <= p.ceiling) {
		return p.raising(q, best)
	}
	step := 0
	if p.trials != nil && rows > n {
		step = p.trials.next(rate)
	}
	if step == 0 || p.trials.unmoved(n) {
		return window{}, false
	}
	if q.rowsFrom(best.at) <= n {
		rows-- // the rows before it have little time left: skip them in the trial, too
	}
	limit, _ := p.explored()
	top := p.max
	if p.ceiling > 0 {
		top = p.ceiling
	}
	if step > 0 && n >= top || step < 0 && n == 1 { // no size on this side
		step = -step
	}
	m := min(roundSize(max(0, quarterOf(n)+step)), limit, top)
	if m > rows {
		m = roundSize(quarterOf(rows+1) - 1)
	}
	if step > 0 {
		m = max(m, n)
	}
	if m == n {
		return window{}, false
	}
	p.trials.best, p.trials.tried = n, m
	// The rows with most time left have the best chance to be in time.
	return window{at: q.back(m), rows: m, room: m, cap: m, why: CloseTrial, left: CloseTrial,
		bestTime: float64(m) / rate, medianDeadline: q.item(q.back((m + 1) / 2)).deadline}, true
}

// raising returns the window for a trial above the ceiling, if the best known size is the ceiling.
// Such trials add no debt: the ceiling's pauses bound them. A belief about the time of sizes that
// were never answered must not prevent them either.
func (p *plan) raising(q *queue, best window) (window, bool) {
	m := min(p.max, q.rows)
	if m <= p.ceiling || best.rows != p.ceiling {
		return window{}, false
	}
	at := best.at
	if q.rowsFrom(at) < m {
		at = q.back(m)
	}
	return window{at: at, rows: m, room: m, cap: m, why: CloseTrial, left: CloseTrial}, true
}
