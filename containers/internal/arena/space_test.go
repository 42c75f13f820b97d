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
	for range 20000 {
		if n := 1 + random.Int64N(20); random.IntN(2) == 0 {
			first := int64(-1) // lowest place for n units
			run := int64(0)
			for i := int64(lo); i < hi && first < 0; i++ {
				if run++; taken[i] {
					run = 0
				}
				if run == n {
					first = i - n + 1
				}
			}
			at, ok := s.take(n, hi)
			if ok != (first >= 0) || ok && at != first {
				t.Fatalf("take(%d) = %d, %v; the first place is %d", n, at, ok, first)
			}
			if ok {
				for i := range n {
					taken[at+i] = true
				}
				out = append(out, piece{at, n})
			}
		} else if len(out) > 0 {
			i := random.IntN(len(out))
			p := out[i]
			out = slices.Delete(out, i, i+1)
			s.give(p.at, p.n)
			for i := range p.n {
				taken[p.at+i] = false
			}
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
	if at, ok := s.take(1, lo); ok {
		t.Errorf("took %d beyond the limit", at)
	}
}
