//go:build !race

package metrics

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

func TestHotPathDoesNotAllocate(t *testing.T) {
	m := New("")
	tally, a, h := m.Door("tcp").Tally(), m.Model("a", "1"), m.Hooks()
	id := scheduler.ModelID{Name: "a", Version: "1"}
	if n := testing.AllocsPerRun(100, func() {
		tally.Received(10)
		tally.Began()
		tally.Waited(a, time.Millisecond, time.Millisecond)
		tally.Answered(a, OK, time.Millisecond)
		tally.Sent(10)
		tally.Flush()
		h.BatchClosed(id, 3, scheduler.CloseIdle, 0)
		h.BatchDone(id, 3, time.Millisecond, 0, nil)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
