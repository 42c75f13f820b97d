package rounds

import (
	"math/rand/v2"
	"testing"
	"time"
)

const ms = time.Millisecond

type (
	table = Table[int]
	seat  = Seat[int]
	batch = Batch[int]
)

func newTable(lanes, most, seats int) (*table, []*seat) {
	t := New(lanes, most, func(a, b int) bool { return a >= 0 && b >= 0 })
	var all []*seat
	for range seats {
		all = append(all, t.Join(true))
	}
	return t, all
}

// granted returns the grants that are due, and fails the test if an execution is.
func granted(t *testing.T, x *table, now time.Duration, want int) []Grant[int] {
	t.Helper()
	grants, e, _ := x.Next(now)
	if len(grants) != want || e != nil {
		t.Fatalf("%d grants and execution %v, expected %d grants", len(grants), e, want)
	}
	return grants
}

func executed(t *testing.T, x *table, now time.Duration, rows int) *Execution[int] {
	t.Helper()
	grants, e, _ := x.Next(now)
	if len(grants) > 0 || e == nil || e.Rows != rows {
		t.Fatalf("%d grants and execution %+v, expected one of %d rows", len(grants), e, rows)
	}
	return e
}

// TestTogether: all servers with rows are granted the same execution, are told of each other, and
// are executed together.
func TestTogether(t *testing.T) {
	x, s := newTable(1, 0, 3)
	x.Offer(s[0], 6, 10*ms, 0)
	x.Offer(s[1], 3, 0, 0)
	g := granted(t, x, 0, 2)
	if g[0].Here != 6 || g[0].Elsewhere != 3 || g[1].Here != 3 || g[1].Elsewhere != 6 {
		t.Errorf("told %+v", g)
	}
	x.Arrive(s[0], batch{Rows: 5, Grant: g[0].ID, Left: 1, Best: 8}, ms)
	if _, e, wake := x.Next(ms); e != nil || wake == 0 {
		t.Fatalf("execution %v before both have answered, wake %v", e, wake)
	}
	x.Arrive(s[1], batch{Rows: 3, Grant: g[1].ID, Best: 8}, ms)
	e := executed(t, x, ms, 8)
	if grants, next, _ := x.Next(ms); len(grants) > 0 || next != nil {
		t.Fatal("a round while the only lane is busy")
	}
	x.Done(e, 5*ms)
	if g := granted(t, x, 5*ms, 1); g[0].Seat != s[0] || g[0].Target != 8 {
		t.Errorf("the server with a row left has no grant with the target: %+v", g)
	}
}

// TestPatience: a server that offers and does not send, or has died, delays the other servers by
// the round's patience once. It gets no other grant until it offers again, a second later.
func TestPatience(t *testing.T) {
	x, s := newTable(1, 0, 2)
	x.Offer(s[0], 1, 0, 0)
	x.Offer(s[1], 1, 0, 0)
	g := granted(t, x, 0, 2)
	x.Arrive(s[0], batch{Rows: 1, Grant: g[0].ID}, ms)
	_, _, wake := x.Next(ms)
	if wake <= 0 || wake > mostPatience {
		t.Fatalf("wakes at %v", wake)
	}
	e := executed(t, x, wake, 1)
	x.Done(e, 30*ms)
	x.Offer(s[0], 1, 0, 30*ms)
	x.Offer(s[1], 1, 0, 30*ms)
	if g := granted(t, x, 30*ms, 1); g[0].Seat != s[0] || g[0].Elsewhere != 0 {
		t.Fatalf("granted %+v to the one that owes a batch", g)
	}
	x.Offer(s[1], 1, 0, 1100*ms)
	if g := granted(t, x, 1100*ms, 1); g[0].Seat != s[1] {
		t.Fatal("who offers again has no grant")
	}
}

// TestLate: a batch that arrives after its round goes into the next one.
func TestLate(t *testing.T) {
	x, s := newTable(1, 0, 2)
	x.Offer(s[0], 1, 0, 0)
	g := granted(t, x, 0, 1)
	x.Arrive(s[1], batch{Rows: 2}, 0)
	e := executed(t, x, mostPatience, 2)
	x.Arrive(s[0], batch{Rows: 1, Grant: g[0].ID}, 25*ms)
	x.Done(e, 30*ms)
	if e := executed(t, x, 30*ms, 1); e.Batches[0].seat != s[0] {
		t.Error("the late batch is not executed")
	}
}

// TestRoom: an execution has at most as many rows as the container takes, and batches that cannot
// be joined are executed one after the other; a batch that had no place goes first in the next
// execution.
func TestRoom(t *testing.T) {
	x, s := newTable(1, 4, 3)
	for i, rows := range []int{3, 2, 1} {
		x.Arrive(s[i], batch{Rows: rows}, 0)
	}
	e := executed(t, x, 0, 4)
	x.Arrive(s[0], batch{Rows: 3}, ms)
	x.Done(e, 7*ms)
	e = executed(t, x, 7*ms, 2)
	if e.Queued(0) != 7*ms {
		t.Errorf("it is said to have waited %v, expected 7 ms", e.Queued(0))
	}
	x.Done(e, 8*ms)
	x.Arrive(s[1], batch{Rows: 1, Body: -1}, 8*ms)
	x.Done(executed(t, x, 8*ms, 3), 9*ms)
	executed(t, x, 9*ms, 1)
}

// TestTurns: where an execution has room for one server only, the most urgent goes first, but a
// server that always claims to be urgent is at most Lead executions ahead.
func TestTurns(t *testing.T) {
	x, s := newTable(1, 1, 3)
	var served [3]int
	now := time.Duration(0)
	for range 300 {
		for i := range s {
			x.Offer(s[i], 1, 50*ms/time.Duration(1+9*i), now)
		}
		g := granted(t, x, now, 1)
		for i := range s {
			if s[i] == g[0].Seat {
				served[i]++
				x.Arrive(s[i], batch{Rows: 1, Grant: g[0].ID}, now)
			}
		}
		e := executed(t, x, now, 1)
		now += ms
		x.Done(e, now)
	}
	if served[0] < 95 || served[2] < 100 || served[2] > 100+2*Lead {
		t.Errorf("%v of 300 executions", served)
	}
}

// TestClaims: the rows that a server claims count only in proportion to the rows that it sends.
func TestClaims(t *testing.T) {
	x, s := newTable(1, 0, 2)
	x.Offer(s[0], 1, 0, 0)
	x.Offer(s[1], 1<<40, 0, 0)
	if g := granted(t, x, 0, 2); g[0].Elsewhere > trustMore {
		t.Errorf("one that has sent nothing is believed to have %d rows", g[0].Elsewhere)
	}
}

// TestClaimsAreSmoothed: a single claim, even a lie, has little effect on the rows that the server
// is believed to have at its next grant.
func TestClaimsAreSmoothed(t *testing.T) {
	x, s := newTable(1, 0, 2)
	round := func(rows, left int) (claim int) {
		for i := range s {
			x.Offer(s[i], 1, 0, 0)
		}
		g := granted(t, x, 0, 2)
		if claim = g[0].Here; g[1].Elsewhere != claim {
			t.Errorf("the server is told of %d rows, the other of %d", claim, g[1].Elsewhere)
		}
		if rows > 0 {
			x.Arrive(s[0], batch{Rows: rows, Left: left, Grant: g[0].ID}, 0)
		} else {
			x.Pass(s[0], g[0].ID, 0, 0)
		}
		x.Arrive(s[1], batch{Rows: 20, Grant: g[1].ID}, 0)
		x.Done(executed(t, x, 0, rows+20), 0)
		return claim
	}
	for range 4 {
		round(20, 60)
	}
	for _, had := range []struct{ rows, left, before int }{{8, 0, 80}, {0, 0, 71}, {20, 60, 62}, {20, 60, 64}} {
		if claim := round(had.rows, had.left); claim != had.before {
			t.Errorf("the server is asked for its part as if it had %d rows, want %d", claim, had.before)
		}
	}
	x.Offer(s[0], 1<<40, 0, 0)
	for range 16 {
		round(20, 60)
	}
	if claim := round(20, 60); claim < 76 || claim > 80 {
		t.Errorf("16 rounds after a lie the server is believed to have %d rows, want the 80 that it has", claim)
	}
}

// TestLeave: no round waits for a session that has ended, and the batches that it sent are executed
// or dropped.
func TestLeave(t *testing.T) {
	x, s := newTable(1, 0, 2)
	x.Offer(s[0], 1, 0, 0)
	x.Offer(s[1], 1, 0, 0)
	g := granted(t, x, 0, 2)
	x.Arrive(s[0], batch{Rows: 1, Grant: g[0].ID}, 0)
	x.Leave(s[1])
	x.Offer(s[1], 9, 0, 0) // sent before the session ended
	x.Done(executed(t, x, 0, 1), ms)
	if grants, e, _ := x.Next(ms); len(grants) > 0 || e != nil {
		t.Error("a session that has ended is granted a batch")
	}
	x.Arrive(s[0], batch{Rows: 1, Body: 7}, ms)
	x.Leave(s[0])
	if d := x.Drop(s[0]); len(d) != 1 || d[0] != 7 || !x.Idle() {
		t.Errorf("dropped %v, idle %v", d, x.Idle())
	}
}

// TestEverythingIsExecuted: whatever servers do, every batch is executed once, in an execution of
// at most the allowed rows, with at most as many executions at once as there are lanes, and servers
// that behave are served.
func TestEverythingIsExecuted(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		lanes, most := 1+rng.IntN(3), rng.IntN(8)
		x, s := newTable(lanes, most, 1+rng.IntN(5))
		var running []*Execution[int]
		done := make(map[int]bool)
		number, now := 0, time.Duration(0)
		send := func(s *seat, grant uint64) {
			number++
			x.Arrive(s,
				batch{Rows: 1 + rng.IntN(max(1, most)), Grant: grant, Left: rng.IntN(3), Best: rng.IntN(9),
					Body: number}, now)
		}
		next := func(behave bool) (grants []Grant[int], wake time.Duration) {
			for {
				g, e, at := x.Next(now)
				for _, one := range g {
					switch rng.IntN(4) {
					case 0:
						if behave {
							x.Pass(one.Seat, one.ID, rng.IntN(3), now)
						}
					default:
						send(one.Seat, one.ID)
					}
				}
				if e != nil {
					running = append(running, e)
					rows := 0
					for _, b := range e.Batches {
						if done[b.Body] {
							t.Fatalf("seed %d: batch %d is executed twice", seed, b.Body)
						}
						done[b.Body] = true
						rows += b.Rows
					}
					if rows != e.Rows || most > 0 && rows > most && len(e.Batches) > 1 || len(running) > lanes {
						t.Fatalf("seed %d: %d rows of %d, %d executions on %d lanes", seed, rows, most, len(running),
							lanes)
					}
				}
				if len(g) == 0 && e == nil {
					return nil, at
				}
			}
		}
		finish := func() {
			e := running[0]
			running = running[1:]
			x.Done(e, now)
		}
		for range 300 {
			now += time.Duration(rng.IntN(2000)) * time.Microsecond
			switch one := s[rng.IntN(len(s))]; rng.IntN(5) {
			case 0, 1:
				x.Offer(one, rng.IntN(9), time.Duration(rng.IntN(50))*ms, now)
			case 2:
				send(one, uint64(rng.IntN(30)))
			case 3:
				x.Pass(one, uint64(rng.IntN(30)), rng.IntN(3), now)
			case 4:
				if len(running) > 0 {
					finish()
				}
			}
			next(false)
		}
		for range 4 * number {
			now += 2 * time.Second
			for len(running) > 0 {
				finish()
			}
			if next(true); x.Idle() {
				break
			}
		}
		if !x.Idle() || len(done) != number {
			t.Fatalf("seed %d: %d of %d batches are executed, idle %v", seed, len(done), number, x.Idle())
		}
		for _, one := range s {
			x.Offer(one, 1, 0, now+5*time.Second)
		}
		if g, _, _ := x.Next(now + 5*time.Second); len(g) == 0 {
			t.Fatalf("seed %d: nobody is granted anything any more", seed)
		}
	}
}
