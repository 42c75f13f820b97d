package rounds

import (
	"testing"
	"time"
)

// A loop has servers that each offer a row some time after the answer to the one before.
type loop struct {
	t     *testing.T
	x     *table
	seats []*seat
	now   time.Duration
	took  func(rows int) time.Duration
	after time.Duration // from answer to offer
	next  map[*seat]time.Duration
	quiet map[*seat]bool // offers no more
	early map[*seat]bool // offers a row during its own execution
	sizes []int          // of the executions
	waits time.Duration  // idle time with an offer outstanding
}

func newLoop(t *testing.T, servers int, took func(int) time.Duration) *loop {
	l := &loop{t: t, took: took, after: ms, next: make(map[*seat]time.Duration), quiet: make(map[*seat]bool),
		early: make(map[*seat]bool)}
	l.x, l.seats = newTable(1, 0, servers)
	for i, s := range l.seats { // apart
		l.next[s] = time.Duration(i) * 2 * ms
	}
	return l
}

// run carries out so many executions.
func (l *loop) run(executions int) {
	for n := 0; n < executions; {
		for s, at := range l.next {
			if at <= l.now {
				delete(l.next, s)
				l.x.Offer(s, 1, 0, l.now)
			}
		}
		grants, e, wake := l.x.Next(l.now)
		for _, g := range grants {
			l.x.Arrive(g.Seat, batch{Rows: 1, Grant: g.ID}, l.now)
		}
		switch {
		case e != nil:
			n++
			l.sizes = append(l.sizes, e.Rows)
			l.execute(e)
		case len(grants) == 0:
			at := l.now + time.Second
			for _, s := range l.seats {
				if o, ok := l.next[s]; ok {
					at = min(at, o)
				}
				if s.wants && wake > 0 {
					at = min(at, wake)
				}
			}
			if wake > 0 {
				l.waits += at - l.now
			}
			l.now = at
		}
	}
}

func (l *loop) execute(e *Execution[int]) {
	end := l.now + l.took(e.Rows)
	for i := range e.Batches {
		if s := e.Batches[i].seat; l.early[s] {
			l.x.Offer(s, 1, 0, l.now)
		} else if !l.quiet[s] {
			l.next[s] = end + l.after
		}
	}
	for s, at := range l.next {
		if at < end {
			delete(l.next, s)
			l.x.Offer(s, 1, 0, at)
		}
	}
	l.now = end
	l.x.Done(e, end)
}

// last is the mean size of the latest executions.
func (l *loop) last(n int) float64 {
	sum := 0
	for _, rows := range l.sizes[len(l.sizes)-n:] {
		sum += rows
	}
	return float64(sum) / float64(n)
}

func line(a, b time.Duration) func(int) time.Duration {
	return func(rows int) time.Duration { return a + time.Duration(rows)*b }
}

// TestServersThatAskOnAnswer: such servers come to share executions where that answers more, in
// whatever order they began.
func TestServersThatAskOnAnswer(t *testing.T) {
	for _, c := range []struct {
		name    string
		servers int
		took    func(int) time.Duration
		after   time.Duration
		want    float64 // rows of an execution
	}{
		{"constant", 2, line(50*ms, 0), ms, 2},
		{"constant, 5 servers", 5, line(50*ms, 0), ms, 5},
		{"20 + 1n", 3, line(20*ms, ms), ms, 3},
		{"constant, after much of an execution", 2, line(50*ms, 0), 30 * ms, 2},
		{"later than an execution takes", 2, line(10*ms, 0), 15 * ms, 1},
	} {
		l := newLoop(t, c.servers, c.took)
		l.after = c.after
		l.run(400)
		if got := l.last(100); got < c.want-0.1 || got > c.want+0.1 {
			t.Errorf("%s: executions of %.2f rows in the mean, want %g", c.name, got, c.want)
		}
	}
}

// TestNothingToGain: where an execution's time is that of its rows, nothing is waited for but when
// all the latest executions had one size.
func TestNothingToGain(t *testing.T) {
	l := newLoop(t, 2, line(ms/10, 5*ms))
	l.run(50)
	l.waits = 0
	began := l.now
	l.run(400)
	if l.waits > (l.now-began)/100 {
		t.Errorf("waited %v of %v", l.waits, l.now-began)
	}
}

// TestServerThatStopsAsking: it, or one that dies, is waited for once, and no longer than the part
// of an execution that does not depend on its rows.
func TestServerThatStopsAsking(t *testing.T) {
	l := newLoop(t, 2, line(20*ms, ms))
	l.run(50)
	l.waits = 0
	l.quiet[l.seats[0]] = true
	l.run(50)
	if l.waits == 0 || l.waits > 20*ms {
		t.Errorf("waited %v for a server that has nothing more, want at most 20 ms, once", l.waits)
	}
	if l.last(10) != 1 {
		t.Errorf("executions of %.1f rows", l.last(10))
	}
}

// TestServerThatAsksAtAnyTime: a server that offers rows while it waits for an answer is not waited
// for.
func TestServerThatAsksAtAnyTime(t *testing.T) {
	l := newLoop(t, 2, line(20*ms, ms))
	for _, s := range l.seats {
		l.early[s] = true
	}
	l.run(100)
	if l.waits > 0 {
		t.Errorf("waited %v", l.waits)
	}
}

// TestHoldEndsByDeadline: a wait ends in time for the most urgent row.
func TestHoldEndsByDeadline(t *testing.T) {
	l := newLoop(t, 2, line(20*ms, ms))
	l.after = 3 * ms
	l.run(50)
	end := l.now
	for s := range l.next {
		delete(l.next, s)
	}
	l.x.Offer(l.seats[0], 1, 29*ms, end+ms) // both together take 22 ms
	if g, _, wake := l.x.Next(end + ms); len(g) > 0 || wake < end+2*ms || wake > end+3*ms {
		t.Errorf("%d grants, wakes after %v, want a wait of 2 ms at most", len(g), wake-end)
	}
	l.x.Offer(l.seats[0], 1, 22*ms, end+ms)
	if g, _, _ := l.x.Next(end + ms); len(g) != 1 {
		t.Errorf("%d grants, want one at once", len(g))
	}
}

// TestServerWhoseTimeHasPassed: a server that has not asked again when it should have counts for
// nothing, however many rows it had: the others are waited for as without it.
func TestServerWhoseTimeHasPassed(t *testing.T) {
	l := newLoop(t, 3, line(20*ms, ms))
	l.run(50)
	l.quiet[l.seats[0]] = true
	l.run(10)
	l.seats[0].mean = 50
	l.x.Offer(l.seats[1], 1, 40*ms, l.now+ms/2) // both together take 22 ms
	if g, _, wake := l.x.Next(l.now + ms/2); len(g) > 0 || wake < l.now+ms {
		t.Errorf("%d grants, wakes after %v, want a wait for the server that asks after 1 ms", len(g), wake-l.now)
	}
}

// TestServerThatStartsOver: a round waits for the rows of a server that gives its grant back to
// start over, once, whatever the server offers for the next round.
func TestServerThatStartsOver(t *testing.T) {
	l := newLoop(t, 2, line(20*ms, ms))
	l.run(50)
	a, b := l.seats[0], l.seats[1]
	l.x.Offer(a, 4, 60*ms, l.now)
	l.x.Offer(b, 4, 60*ms, l.now)
	g := granted(t, l.x, l.now, 2)
	l.x.Arrive(a, batch{Rows: 4, Grant: g[0].ID, Left: 2}, l.now)
	l.x.Pass(b, g[1].ID, 4, l.now)
	if grants, e, wake := l.x.Next(l.now); len(grants) > 0 || e != nil || wake < l.now+ms {
		t.Fatalf("%d grants, execution %v, wakes after %v, want a wait for who starts over", len(grants), e, wake-l.now)
	}
	l.now += ms
	l.x.Offer(b, 4, 60*ms, l.now)
	again := granted(t, l.x, l.now, 1)
	if again[0].Seat != b || again[0].Here != 4 {
		t.Errorf("granted %+v", again)
	}
	l.x.Pass(b, again[0].ID, 4, l.now)
	l.x.Done(executed(t, l.x, l.now, 4), l.now+20*ms)
}
