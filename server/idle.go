package server

import (
	"runtime/debug"
	"time"

	"github.com/shivad/shivad/shiva/tensor"
)

const (
	giveBackEvery = 10 * time.Second
	// worthGivingBack is what a collection is worth by itself: it takes milliseconds, as
	// buffers hold no pointers.
	worthGivingBack = 16 << 20
)

// giveBack has the system get back what the pool keeps and nobody needs, until stop is closed.
// A collection would see to that, but a server at rest has one in two minutes, and each halves
// what is kept: the memory of its busiest moment would be its own for a quarter of an hour.
func giveBack(pool *tensor.Pool, every time.Duration, stop <-chan struct{}) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var garbage int64
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		if garbage += pool.Trim(); garbage >= worthGivingBack {
			garbage = 0
			debug.FreeOSMemory()
		}
	}
}
