package arena

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSpace compares a space with a map of its units, over random takes and gives.
func TestSpace(t *testing.T) {
	const lo, hi = 3, 203
	s := newSpace(lo, hi)
	var taken [hi]bool
	type piece struct{ at, n int64 }
	var out []piece
	random := rand.New(rand.NewPCG(1, 2))
	set := func(at, n int64, to bool) {
		for i := at; i < at+n; i++ {
			if taken[i] == to {
				t.Fatalf("unit %d of %d at %d is taken: %v", i, n, at, taken[i])
			}
			taken[i] = to
		}
	}
	grown := 0
	for range 20000 {
		n := 1 + random.Int64N(20)
		i := random.IntN(len(out) + 1)
		switch op := random.IntN(5); {
		case op < 3:
			room := n + random.Int64N(20)*random.Int64N(2)
			want := int64(-1) // lowest place for n units, or the end of the lowest with room
			for at := int64(lo); at < hi; at++ {
				end := at
				for end < hi && !taken[end] {
					end++
				}
				if end-at >= n && want < 0 {
					want = at
				}
				if used := min(end, s.high); room > n && used-at >= room {
					want = used - room
					break
				}
				at = end
			}
			at, ok := s.take(n, room, hi)
			if ok != (want >= 0) || ok && at != want {
				t.Fatalf("take(%d, %d) = %d, %v; expected %d", n, room, at, ok, want)
			}
			if ok {
				set(at, n, true)
				out = append(out, piece{at, n})
			}
		case i == len(out):
		case op == 3:
			p := &out[i]
			limit := p.at + p.n + random.Int64N(30)
			free := p.at+p.n+n <= min(limit, hi)
			for u := p.at + p.n; free && u < p.at+p.n+n; u++ {
				free = !taken[u]
			}
			if ok := s.extend(p.at, p.n, n, limit); ok != free {
				t.Fatalf("extend(%d, %d, %d, %d) = %v", p.at, p.n, n, limit, ok)
			}
			if free {
				grown++
				set(p.at+p.n, n, true)
				p.n += n
			}
		default:
			p := out[i]
			out = slices.Delete(out, i, i+1)
			s.give(p.at, p.n)
			set(p.at, p.n, false)
		}
		used := int64(0)
		for _, p := range out {
			used += p.n
		}
		if s.used != used {
			t.Fatalf("%d used, expected %d", s.used, used)
		}
		for i := range s.free {
			if f := s.free[i]; f.lo >= f.hi || i > 0 && s.free[i-1].hi >= f.lo {
				t.Fatalf("free: %v", s.free)
			}
		}
	}
	if grown < 100 {
		t.Errorf("%d were extended", grown)
	}
	if at, ok := s.take(1, 1, lo); ok {
		t.Errorf("took %d beyond the limit", at)
	}
}
