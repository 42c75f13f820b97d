//go:build !race && !invariants

package tensor

import "testing"

// TestAllocs holds the hot path to its budget.
func TestAllocs(t *testing.T) {
	pool := NewPool(1 << 30)
	x, _ := FromSlice(Shape{8, 3}, make([]float32, 24))
	budget := func(name string, most float64, f func()) {
		t.Helper()
		if n := testing.AllocsPerRun(1000, f); n > most {
			t.Errorf("%s: %v allocations, the budget is %v", name, n, most)
		}
	}
	for _, size := range []int{1, 1000, 1 << 20} {
		budget("Get and Release", 0, func() {
			b, err := pool.Get(size)
			if err != nil {
				t.Fatal(err)
			}
			b.Retain()
			b.Release()
			b.Release()
		})
	}
	budget("Check", 0, func() {
		if err := x.Check(); err != nil {
			t.Fatal(err)
		}
	})
	budget("RowSlice: the shape", 1, func() {
		if _, err := x.RowSlice(2, 5); err != nil {
			t.Fatal(err)
		}
	})
	budget("Cut: both shapes in one", 1, func() {
		if _, _, err := x.Cut(2); err != nil {
			t.Fatal(err)
		}
	})
}
