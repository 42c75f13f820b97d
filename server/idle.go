package server

import (
	"runtime/debug"
	"time"

	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	giveBackEvery = 10 * time.Second
	// worthGivingBack is how much garbage is worth an extra collection, which takes milliseconds,
	// as buffers hold no pointers.
	worthGivingBack = 16 << 20
)

// giveBack returns idle memory of the pool to the system, until stop is closed. Garbage collections
// do that too, but an idle server has one every two minutes, and each halves the idle memory of the
// pool: the memory of the busiest moment would stay for a quarter of an hour.
func giveBack(pool *tensor.Pool, every time.Duration, stop <-chan struct{}) {
	var garbage int64
	for range wake.Every(every, stop) {
		if garbage += pool.Trim(); garbage >= worthGivingBack {
			garbage = 0
			debug.FreeOSMemory()
		}
	}
}
