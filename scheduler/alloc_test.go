//go:build !race

package scheduler_test

import (
	"testing"
	"unsafe"

	"github.com/shivad/shivad/scheduler"
)

// TestRequestAllocates: a request makes less than one allocation on its way through the
// scheduler. (It makes none, but pools lose objects to garbage collections.)
func TestRequestAllocates(t *testing.T) {
	l := newLoop(t)
	for range 100 {
		l.round() // fill the pools, let the timer be made
	}
	if n := testing.AllocsPerRun(200, l.round) / benchBatch; n > 0.1 {
		t.Errorf("%.2f allocations per request at batches of %d, want at most 0.1", n, benchBatch)
	}
}

// TestRequestSize keeps the doc comment of Request true.
func TestRequestSize(t *testing.T) {
	if n := unsafe.Sizeof(scheduler.Request{}); n > 512 || n <= 480 {
		t.Errorf("a Request takes %d bytes, its comment says that it fits 512", n)
	}
}
