//go:build !race

package metrics

import (
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
)

func TestHotPathDoesNotAllocate(t *testing.T) {
	m := New("")
	d, a, h := m.Door("tcp"), m.Model("a", "1"), m.Hooks()
	id := scheduler.ModelID{Name: "a", Version: "1"}
	if n := testing.AllocsPerRun(100, func() {
		d.Received(10)
		d.Began()
		a.Waited(time.Millisecond)
		a.Answered(d, OK, time.Millisecond)
		d.Sent(10)
		h.BatchClosed(id, 3, scheduler.CloseIdle, 0)
		h.BatchDone(id, 3, time.Millisecond, 0, nil)
	}); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
