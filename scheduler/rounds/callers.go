package rounds

import "time"

// Servers whose clients ask again on each answer.
//
// Such a server has no rows when its batch is answered, and offers some a moment later. If the
// container takes what others have offered meanwhile, the servers' clients split into groups that
// wait for each other, at half the rate: each group pays for the part of an execution that does not
// depend on its rows. Waiting for a server pays if it is shorter than that part, times the chance
// that the server does offer. So the table learns that part from its executions (costs), and of
// each server how often and how soon an offer follows an answer (habit).
//
// A server whose rows would be late in a joint execution answers them, and gives its grant back.
// Their clients ask again at once. So the round waits for that server as after an answer, once:
// otherwise the others' rows would leave without these, which would be late again next time.
//
// A server that stops asking, or dies, costs one such wait, since only an answer lets the table
// expect an offer. No belief is final: a server that is not waited for is observed all the same,
// and where executions have had one size only, nothing speaks against a larger one.

// habit is what is known of how a server offers rows after its answers. It is part of the seat.
type habit struct {
	executing int           // its batches
	expected  bool          // its latest answer has not been followed by an offer yet
	answered  time.Duration // when that was
	asks      float64       // share of the answers that an offer followed, and none preceded
	after     time.Duration // from answer to offer: the mean
	deviation time.Duration // ... and its mean deviation
}

const (
	habitFade = 8 // answers over which a habit is a mean
	// A server is waited for that asks after a larger share of its answers. It is below a half: the
	// clients of a server that form two groups offer after every other answer.
	mostly = 0.4
	// Where a server that does not ask on answer has rows, they are later by this factor at most.
	mostLater = 1.2
)

// observe counts an answer, and whether an offer followed it in time, and none preceded it.
func (s *Seat[B]) observe(asks bool) {
	x := 0.0
	if asks {
		x = 1
	}
	s.asks += (x - s.asks) / habitFade
}

// answers counts the answer to a batch of the server.
func (s *Seat[B]) answers(now time.Duration) {
	switch s.executing--; {
	case s.executing > 0:
	case s.wants:
		s.observe(false)
	default:
		s.expected, s.answered = true, now
	}
}

// returns counts an offer. One that comes later than an execution takes is nothing to wait for.
func (s *Seat[B]) returns(now, execution time.Duration) {
	if !s.expected {
		return
	}
	s.expected = false
	after := now - s.answered
	if after > execution {
		s.observe(false)
		return
	}
	if s.after == 0 {
		s.after, s.deviation = after, after/2
	}
	s.observe(true)
	s.deviation += (max(after-s.after, s.after-after) - s.deviation) / habitFade
	s.after += (after - s.after) / habitFade
}

// hold returns until when the next round, or the open one once all servers have answered, waits for
// servers that are about to offer rows; now: it does not.
func (t *Table[B]) hold(now time.Duration) (until time.Duration) {
	if !t.open && len(t.queue) > 0 || t.busy != t.lanes-1 {
		return now
	}
	fixed, each := t.costs.line()
	took := func(rows int) time.Duration { return time.Duration(fixed + each*float64(rows)) }
	until = now
	waiting, coming, others := 0, 0, false
	for i := range t.queue {
		waiting += t.queue[i].Rows
	}
	for _, s := range t.joined {
		switch {
		case s.waited:
			return now
		case t.granted(s): // what it has offered since is for the next round
		case s.wants:
			waiting += s.claim()
			others = others || s.asks < mostly
		case s.expected && s.asks > mostly:
			// One whose time has passed does not come: its rows make nothing longer.
			if end := s.answered + s.after + 4*s.deviation; end > now && float64(end-now) < s.asks*fixed {
				until = max(until, end)
				coming += s.claim()
			}
		}
	}
	all := took(waiting + coming)
	if until == now || waiting == 0 || others && float64(until-now+all) > mostLater*float64(took(waiting)) {
		return now
	}
	for _, s := range t.joined {
		if s.wants && s.due > 0 && !t.granted(s) {
			until = min(until, s.due-all*5/4)
		}
	}
	return max(now, until)
}

// costs are sums over the latest executions, for a line through their times by rows.
type costs struct{ n, rows, took, square, product float64 }

const (
	costsFade = 32   // executions
	oneSize   = 1e-3 // a squared deviation of their rows, relative to the mean, that tells nothing
)

func (c *costs) add(rows int, took time.Duration) {
	const keep = 1 - 1.0/costsFade
	x, y := float64(rows), float64(took)
	c.n = c.n*keep + 1
	c.rows = c.rows*keep + x
	c.took = c.took*keep + y
	c.square = c.square*keep + x*x
	c.product = c.product*keep + x*y
}

// line returns the time of an execution that does not depend on its rows, and that of each row. If
// the latest executions had about equally many rows, nothing is known of a row's time: it is 0.
func (c *costs) line() (fixed, each float64) {
	if c.n == 0 {
		return 0, 0
	}
	x, y := c.rows/c.n, c.took/c.n
	if spread := c.square/c.n - x*x; spread > oneSize*x*x {
		each = min(max(0, (c.product/c.n-x*y)/spread), y/x)
	}
	return y - each*x, each
}
