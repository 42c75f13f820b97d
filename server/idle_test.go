package server

import (
	"runtime/metrics"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// resident returns how much of the system's memory the Go runtime holds.
func resident() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64() - s[1].Value.Uint64()
}

// The memory of a busy moment is returned to the system when it is idle, without waiting for the
// runtime's own collection.
func TestIdleMemoryGoesBack(t *testing.T) {
	if tensor.Invariants {
		return // nothing is kept
	}
	stop := make(chan struct{})
	ended := make(chan struct{})
	pool := tensor.NewPool(0)
	before := resident()
	const busy = 128
	var all []*tensor.Buffer
	for range busy {
		b, err := pool.Get(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		clear(b.Bytes())
		all = append(all, b)
	}
	for _, b := range all {
		b.Release()
	}
	clear(all)
	if held := resident() - before; held < busy/2<<20 {
		t.Fatalf("only %d bytes are kept at first", held)
	}
	go func() {
		giveBack(pool, 10*time.Millisecond, stop)
		close(ended)
	}()
	budgettest.Until(t, "the pool gives its buffers back", func() bool { return pool.Idle() <= 16<<20 })
	budgettest.Until(t, "the process gives its memory back", func() bool { return resident() <= before+48<<20 })
	close(stop)
	<-ended
}
