//go:build !race && !invariants

// Allocations are counted where neither the race detector nor the invariants build adds its own.

package containers_test

import (
	"runtime"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestAllocations: a batch there and back costs the server a small, fixed number of allocations,
// whatever its size.
func TestAllocations(t *testing.T) {
	r := newNoop(t, "tcp")
	runs := max(100, budgettest.Rounds(500))
	for _, size := range []int{64, 4 << 10, 1 << 20} {
		q := r.request(1, size)
		for range runs / 5 {
			r.roundTrip(t, q)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range runs {
			r.roundTrip(t, q)
		}
		runtime.ReadMemStats(&after)
		allocs := float64(after.Mallocs-before.Mallocs) / float64(runs)
		bytes := float64(after.TotalAlloc-before.TotalAlloc) / float64(runs)
		t.Logf("%d bytes: %.2f allocations, %.0f bytes", size, allocs, bytes)
		if allocs > 2 || bytes > 512 {
			t.Errorf("a batch of %d bytes costs %.2f allocations of %.0f bytes together, expected at most 2 of 512",
				size, allocs, bytes)
		}
	}
}
