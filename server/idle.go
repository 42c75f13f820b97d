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

// giveBack returns idle memory of the pool to the system, until stop is closed.
// A collection does that too, but a server at rest has one in two minutes, and each halves
// what the pool has: memory of the busiest moment would stay for a quarter of an hour.
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
