package scheduler

import (
	"math/rand/v2"
	"testing"
)

// TestDeadlineAgainstAllWindows compares the strategy's one pass with trying every row: for each row the
// largest batch that meets its deadline, of these the best rate, and the head's own if it is within 10 %.
func TestDeadlineAgainstAllWindows(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		prof := newProfile(1 + rng.IntN(40))
		a, b := rng.Int64N(10_000), 1+rng.Int64N(1000)
		for n := 1; n <= prof.max; n++ {
			for range 4 {
				prof.learn(n, a+b*int64(n), 0)
			}
		}
		p := plan{start: rng.Int64N(5000), max: prof.max, objective: 1 + rng.Int64N(60_000), prof: &prof, shed: true}
		var q queue
		for i := range rng.IntN(300) {
			rows := 1
			if seed%2 == 0 {
				rows = 1 + rng.IntN(4)
			}
			q.insert(&item{req: &Request{Rows: rows}, hi: rows, seq: uint64(i), deadline: rng.Int64N(60_000)})
		}
		if q.items == 0 {
			continue
		}
		got, ok := deadline{}.pick(&q, &p)

		limit, _ := p.bounded()
		var best, head float64
		var headRows int
		for c := q.start(); !q.end(c); c = q.next(c) {
			n := 0
			for n < limit && p.start+prof.planned(n+1) <= q.item(c).deadline {
				n++
			}
			if n == 0 || min(q.item(c).rows(), limit) > n {
				continue
			}
			rows := min(n, q.rowsFrom(c))
			rate := p.rate(rows)
			if q.item(c) == q.head() {
				head, headRows = rate, rows
			}
			best = max(best, rate)
		}
		switch {
		case ok != (best > 0):
			t.Fatalf("seed %d: picked %v, but the best rate is %v", seed, ok, best)
		case !ok:
		case head >= headShare*best:
			if q.item(got.at) != q.head() || got.rows != headRows {
				t.Fatalf("seed %d: the head's own window of %d rows is within 10 %%, got %d rows at row %d", seed, headRows, got.rows, q.rows-q.rowsFrom(got.at))
			}
		default:
			if rate := p.rate(got.rows); rate < best*0.97 { // a profile with kinks can make a shorter window at the end a little better
				t.Fatalf("seed %d: got a window with rate %v, the best one has %v", seed, rate, best)
			}
		}
		if ok && got.rows > 0 && p.start+prof.planned(got.rows) > q.item(got.at).deadline {
			t.Fatalf("seed %d: the window's first row would be late", seed)
		}
	}
}

// TestBoundedByObjective: whatever the deadlines allow, a batch stays within the objective; but one row is
// always allowed.
func TestBoundedByObjective(t *testing.T) {
	prof := newProfile(64)
	for n := 1; n <= 64; n *= 2 {
		for range 10 {
			prof.learn(n, 1000*int64(n), 0)
		}
	}
	for _, c := range []struct {
		objective int64
		want      int
		why       CloseReason
	}{{500, 1, CloseObjective}, {1000, 1, CloseObjective}, {10_500, 10, CloseObjective}, {64_000, 64, CloseFull}} {
		p := plan{max: 64, objective: c.objective, prof: &prof}
		if n, why := p.bounded(); n != c.want || why != c.why {
			t.Errorf("objective %d: %d rows (%s), want %d (%s)", c.objective, n, why, c.want, c.why)
		}
	}
}
