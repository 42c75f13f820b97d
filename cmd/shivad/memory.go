package main

import (
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"github.com/shivad/shivad/server"
	"github.com/shivad/shivad/server/config"
)

// ballastBytes are never touched, so they cost nothing but addresses.
const ballastBytes = 32 << 20

// tuneGC configures the garbage collector, and returns ballast that must be kept alive as long as
// the server runs.
//
// Payloads are pooled, and everything else on the heap is a few megabytes. As the collector runs
// when the heap has doubled, it would run dozens of times a second. With the ballast it waits for
// 32 MiB of garbage. GOGC in the environment takes precedence.
func tuneGC() (ballast []byte) {
	if os.Getenv("GOGC") == "" {
		ballast = make([]byte, ballastBytes)
	}
	return ballast
}

// limitHeap sets the memory limit of the heap. It matters for memory that the pool has released,
// which is garbage until the next collection. GOMEMLIMIT in the environment takes precedence.
func limitHeap(c config.Limits, s *server.Server, log *slog.Logger) {
	limit := memoryLimit(int64(c.PayloadBytes))
	if os.Getenv("GOMEMLIMIT") != "" {
		log.Info("GOMEMLIMIT is set, and holds instead of the server's own", "bytes", debug.SetMemoryLimit(-1), "own", limit)
		return
	}
	step := limit / 64
	var mu sync.Mutex
	shared := int64(-1) // in whole steps
	adjust := func() {
		mu.Lock()
		defer mu.Unlock()
		// SetMemoryLimit stops all goroutines for a moment: not for every few pages.
		if n := (s.SharedBytes() + step - 1) / step * step; n != shared {
			shared = n
			debug.SetMemoryLimit(limit - shared)
		}
	}
	adjust()
	s.WatchShared(adjust)
}

// memoryLimit is the limit of the heap. A tenth of the payloads is for everything else on the heap,
// and for garbage. With the pages of the program itself, some 20 MiB that the collector does not
// count, and the collector's delay, the process stays within a quarter. The limit includes the
// ballast.
//
// Payloads in shared memory are not on the heap, and are subtracted. Without those in files of
// clients, memory that these had taken from the heap stayed with it, free: 229 to 260 MiB of a
// budget of 200, and 210 to 212 with them.
func memoryLimit(payloads int64) int64 {
	return payloads + min(max(payloads/10, 16<<20), 512<<20) + ballastBytes
}
