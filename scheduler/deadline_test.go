package scheduler

import (
	"math/rand/v2"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestDeadlineAgainstAllWindows compares the strategy with trying every run of waiting requests,
// each with every execution time of the spread.
func TestDeadlineAgainstAllWindows(t *testing.T) {
	budgettest.OneGoroutine(t)
	for seed := range uint64(budgettest.Rounds(500)) {
		rng := rand.New(rand.NewPCG(seed, 2))
		prof := newProfile(1 + rng.IntN(40))
		a, b, noise := rng.Int64N(10_000), 1+rng.Int64N(1000), rng.Float64()*0.3
		for n := 1; n <= prof.max; n++ {
			for range 4 {
				prof.learn(n, int64(float64(a+b*int64(n))*(1+noise*rng.NormFloat64())), 0)
			}
		}
		p := plan{start: rng.Int64N(5000), max: prof.max, objective: 1 + rng.Int64N(60_000), prof: &prof, shed: true}
		var q queue
		var rows []int64 // deadlines
		multi := seed%2 == 0
		for i := range rng.IntN(300) {
			n := 1
			if multi {
				n = 1 + rng.IntN(4)
			}
			q.insert(&item{req: &Request{Rows: n}, hi: n, place: place{seq: uint64(i), deadline: rng.Int64N(60_000)}})
		}
		for c := q.start(); !q.end(c); c = q.next(c) {
			for range q.item(c).rows() {
				rows = append(rows, q.item(c).deadline)
			}
		}
		if q.items == 0 {
			continue
		}
		limit, _ := p.bounded()
		rate := func(from, n int) float64 {
			good := 0
			for _, deadline := range rows[from : from+n] {
				for level := range prof.spread.levels {
					if p.endAt(n, level) <= deadline {
						good++
					}
				}
			}
			return p.rate(n) * float64(good) / float64(n*len(prof.spread.levels))
		}
		best, possible := 0.0, make(map[[2]int]bool)
		try := func(from, n int) {
			best = max(best, rate(from, n))
			possible[[2]int{from, n}] = true
		}
		for at := q.start(); !q.end(at); at = q.next(at) {
			from, n := q.rows-q.rowsFrom(at), 0
			for last := at; !q.end(last) && n < limit; last = q.next(last) {
				one := q.item(last).rows()
				if one > limit { // it is divided
					for n++; n <= limit; n++ {
						try(from, n)
					}
				} else if n += one; n <= limit {
					try(from, n)
				}
			}
		}
		w, ok := deadline{}.pick(&q, &p)
		switch {
		case !ok && (best == 0 || multi):
		case !ok:
			t.Fatalf("seed %d: nothing picked, but the best rate is %v", seed, best)
		case w.rows > limit || w.rows > q.rowsFrom(w.at) || w.room < w.rows:
			t.Fatalf("seed %d: %d rows, room for %d, of at most %d and %d", seed, w.rows, w.room, limit,
				q.rowsFrom(w.at))
		default:
			from := q.rows - q.rowsFrom(w.at)
			got, share := rate(from, w.rows), 0.9999
			if multi { // not every run is tried
				share = 0.9
			}
			if !possible[[2]int{from, w.rows}] {
				t.Fatalf("seed %d: requests do not add up to %d rows from %d", seed, w.rows, from)
			}
			if got < share*best || got == 0 {
				t.Fatalf("seed %d: got %d rows from %d at rate %v, the best one is %v", seed, w.rows, from, got, best)
			}
		}
	}
}

// TestBoundedByObjective: whatever the deadlines allow, a batch stays within the objective, but
// one row is always allowed.
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
		if n := (deadline{}).limit(&p); n != c.want {
			t.Errorf("objective %d: the limit is given as %d, want %d", c.objective, n, c.want)
		}
	}
}
