package scheduler

// Trials are batches of another size than what looks best. Whatever the profile believes of larger sizes, that they
// take too long for the objective, for the deadlines, or for what they answer: if nothing but the belief decides whether
// they are tried, a wrong one is for good. The same goes for smaller sizes while the queue is long. So while rows
// wait, sizes around are tried in turn, up to the double and down to half, and what that costs is counted: the time
// that a trial took beyond what its rows would have taken in the batches that looked best, or all of it, if it was late
// for half of its rows. A trial that costs is paid off by a share of the time that the replica works, before there is
// another; one that gains is followed at once by the next, a larger one by one of twice the rows. That is the only
// bound: there is no size, and no number of failures, after which nothing is tried.
type trials struct {
	debt   float64 // ns that were lost and are not paid off
	turn   int     // of trialSteps
	losses int     // one after the other
	upsets int     // of the profile, when last looked at
}

// trialSteps are by how many quarters of a doubling trials are larger than what looks best, in turn: first the double.
var trialSteps = [...]int{4, -1, 1, -2, 2, -3, 3, -4}

const (
	trialShare   = 0.015 // of the time that the replica works: what may be lost to trials at first
	trialRound   = 4     // trials that lost halve that
	trialBackoff = 2     // ... so many times
	trialGain    = 0.1   // of the time, is what a trial must gain to be followed by another at once
)

// next is by how many quarters of a doubling the next trial is larger, or smaller, than what looks best; 0: there is none now.
func (t *trials) next() int {
	if t.debt > 0 {
		return 0
	}
	return trialSteps[t.turn]
}

// work pays off with a batch that took ns. What the profile has had to unlearn, the trials have, too.
func (t *trials) work(ns int64, upsets int) {
	t.debt = max(0, t.debt-trialShare*float64(ns)/float64(int(1)<<min(t.losses/trialRound, trialBackoff)))
	if upsets != t.upsets {
		*t = trials{upsets: upsets, turn: t.turn}
	}
}

// settle counts what a trial has cost, that took ns. A stall of the length that is known would have met another batch.
func (t *trials) settle(ns int64, par, stall float64, late bool) {
	cost := float64(ns)
	if cost-par > stall/2 {
		cost -= stall
	}
	if !late {
		cost -= par
	}
	if cost <= -trialGain*par {
		if t.turn++; trialSteps[t.turn-1] > 0 || t.turn == len(trialSteps) {
			t.turn = 0
		}
		return
	}
	t.debt += max(0, cost)
	t.losses++
	t.turn = (t.turn + 1) % len(trialSteps)
}

// failed counts what a batch has cost that the container failed on after ns: if it was a trial, its rows are yet to be
// computed.
func (t *trials) failed(b *Batch, ns int64) {
	if b.par > 0 {
		t.settle(ns+int64(b.par), b.par, 0, true)
	}
}

// trying is a window for a trial, where another one looks best, and rows per nanosecond are expected of it.
func (p *plan) trying(q *queue, best window, rate float64) (window, bool) {
	n, rows := best.rows, q.rows
	if p.trial == 0 || rows <= n {
		return window{}, false
	}
	if q.rowsFrom(best.at) <= n {
		rows-- // what is left out has little time left: leave that out, too
	}
	limit, _ := p.explored()
	step := p.trial
	if step > 0 && n >= p.max || step < 0 && n == 1 { // there is no room on this side
		step = -step
	}
	m := min(roundSize(max(0, quarterOf(n)+step)), limit)
	if m > rows {
		m = roundSize(quarterOf(rows+1) - 1)
	}
	if step > 0 {
		m = max(m, n)
	}
	if m == n {
		return window{}, false
	}
	// The rows with most time left have the best chance to be answered by it.
	return window{at: q.back(m), rows: m, room: m, cap: m, why: CloseLimit, par: float64(m) / rate, half: q.item(q.back((m + 1) / 2)).deadline}, true
}
