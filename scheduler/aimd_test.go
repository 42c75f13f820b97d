package scheduler

import "testing"

// TestAIMD: the paper's rule, step by step. Full batches under the objective raise the maximum by
// one; one above it lowers the maximum by a tenth; smaller batches change nothing.
func TestAIMD(t *testing.T) {
	prof := newProfile(64)
	for n := 1; n <= 64; n *= 2 {
		prof.learn(n, ms, 0)
	}
	s := newStrategy(strategyAIMD)
	p := plan{max: 64, objective: 10 * ms, prof: &prof}
	for i, c := range []struct {
		rows int // size of a full batch; 0: a batch of half the maximum
		took int64
		want int
	}{
		{1, ms, 2}, {2, ms, 3}, {3, ms, 4}, {0, ms, 4}, {4, 10 * ms, 5}, {5, 11 * ms, 4}, {4, ms, 5}, {0, 11 * ms, 4},
		{4, ms, 5}, {5, ms, 6}, {6, ms, 7}, {7, ms, 8}, {8, ms, 9}, {9, ms, 10}, {10, ms, 11}, {11, 20 * ms, 9},
	} {
		limit := s.limit(&p)
		rows := c.rows
		if rows == 0 {
			rows = limit / 2
		}
		s.learn(rows, limit, c.took)
		if got := s.limit(&p); got != c.want {
			t.Fatalf("step %d: after a batch of %d rows in %d ms up to %d rows, want %d", i, rows, c.took/ms, got,
				c.want)
		}
	}
}
