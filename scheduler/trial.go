package scheduler

// Trials are batches of another size than what looks best. Whatever the profile believes of larger
// sizes, that they take too long for the objective, for the deadlines, or for what they answer: if
// nothing but the belief decides whether they are tried, a wrong one is for good. The same goes for
// smaller sizes while the queue is long. So while rows wait, sizes around are tried in turn, up to
// the double and down to half, and what that costs is counted: the time that a trial took beyond
// what the rows that it answered in time take in the batches that look best. A trial that costs is
// paid off by a share of the time that the replica works, before there is another; one that gains
// is followed at once by the next, a larger one by one of twice the rows. That is the only bound:
// there is no size, and no number of failures, after which nothing is tried.
//
// What looks best may itself be a belief. So a debt is not kept as time, but as what was spent and
// what was had for it, and is reckoned anew whenever a trial is considered: a container of 120 ms
// whatever the rows, of which 14 ms were believed, owed seven seconds of work for a trial of 117 ms
// that was worth its time.
type trials struct {
	spent  float64 // ns that trials took, as far as they are not paid off
	rows   float64 // that they answered in time
	turn   int     // of trialSteps
	best   int     // rows of what looked best at the last trial
	tried  int     // ... and of the trial
	gained bool    // it did
	losses int     // how many trials gained nothing
	upsets int     // of the profile, when last looked at
}

// trialSteps are by how many quarters of a doubling trials are larger than what looks best, in
// turn: first the double.
var trialSteps = [...]int{4, -1, 1, -2, 2, -3, 3, -4}

const (
	trialShare   = 0.06 // of the time that the replica works: what may be lost to trials at first
	trialRound   = 3    // trials that lost halve that
	trialBackoff = 4    // ... so many times
	trialGain    = 0.15 // of the time, is what a trial must gain to be followed by another at once
)

// next is by how many quarters of a doubling the next trial is larger, or smaller, than what looks
// best, of which so many rows per nanosecond are expected; 0: there is none now.
func (t *trials) next(rate float64) int {
	if t.spent*rate > t.rows {
		return 0
	}
	return trialSteps[t.turn]
}

// unmoved reports whether a trial gained, but n rows look best as they did before it. So it is
// their turn to be measured. Without that, a size that is believed to be the largest within the
// objective, and is not, was never sent itself: each batch was a trial of twice its rows, which
// gained.
func (t *trials) unmoved(n int) bool {
	unmoved := t.gained && max(n-t.best, t.best-n) <= max(n-t.tried, t.tried-n)
	t.gained = t.gained && !unmoved
	return unmoved
}

// work pays off with a batch that took ns. What the profile has had to unlearn is no ground for a
// debt.
func (t *trials) work(ns int64, upsets int) {
	t.spent -= trialShare * float64(ns) / float64(int(1)<<min(t.losses/trialRound, trialBackoff))
	if t.spent <= 0 {
		t.spent, t.rows = 0, 0
	}
	if upsets != t.upsets {
		t.spent, t.rows, t.upsets = 0, 0, upsets
	}
}

// settle counts what a trial of so many rows has cost, that took ns. par is what as many took in
// the batches that looked best, late: half of them or more were answered too late. A stall of the
// length that is known would have met another batch.
func (t *trials) settle(ns int64, rows int, par, stall float64, late bool) {
	took, had := float64(ns), float64(rows)
	if took-par > stall/2 {
		took = max(0, took-stall)
	}
	cost := took - par
	if late {
		cost, had = took, 0
	}
	if t.gained = cost <= -trialGain*par; t.gained {
		if t.spent += cost; t.spent <= 0 { // what it has gained pays for those that lost
			t.spent, t.rows = 0, 0
		}
		if t.turn++; trialSteps[t.turn-1] > 0 || t.turn == len(trialSteps) {
			t.turn = 0
		}
		return
	}
	if t.spent*float64(rows) <= t.rows*par { // what is left of those before was worth its time
		t.spent, t.rows = 0, 0
	}
	if cost > 0 {
		t.spent += took
		t.rows += had
	}
	t.losses++
	t.turn = (t.turn + 1) % len(trialSteps)
}

// failed counts what a batch has cost that the container failed on after ns: if it was a trial, its
// rows are yet to be computed.
func (t *trials) failed(b *Batch, ns int64) {
	if b.par > 0 {
		t.settle(ns+int64(b.par), b.Rows, b.par, 0, true)
	}
}

// trying is a window for a trial, where another one looks best, and rows per nanosecond are
// expected of it.
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
		rows-- // what is left out has little time left: leave that out, too
	}
	limit, _ := p.explored()
	top := p.max
	if p.ceiling > 0 {
		top = p.ceiling
	}
	if step > 0 && n >= top || step < 0 && n == 1 { // there is no room on this side
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
	// The rows with most time left have the best chance to be answered by it.
	return window{at: q.back(m), rows: m, room: m, cap: m, why: CloseTrial, left: CloseTrial, par: float64(m) / rate, half: q.item(q.back((m + 1) / 2)).deadline}, true
}

// raising is a window for a trial of more than the ceiling, if as many look best as it allows.
// It is not of the trials of what is believed, and is not paid off like them: how often a
// ceiling is tried is bounded by its pauses. But no belief about the time of sizes that were
// never answered may forbid it either.
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
