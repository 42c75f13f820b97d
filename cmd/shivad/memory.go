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

// tuneGC prepares the garbage collector, and returns ballast to be kept alive as long as the
// server runs.
//
// Payloads are pooled; what else the server has is a few megabytes, over which the collector
// would run dozens of times a second, since it runs when the heap has doubled. With the ballast
// it waits for 32 MiB of garbage. GOGC in the environment goes first.
func tuneGC() (ballast []byte) {
	if os.Getenv("GOGC") == "" {
		ballast = make([]byte, ballastBytes)
	}
	return ballast
}

// limitHeap sets the memory limit of the heap, which is for what the pool lets go: it is garbage
// until the next collection. GOMEMLIMIT in the environment goes first.
func limitHeap(c config.Limits, s *server.Server, log *slog.Logger) {
	limit := memoryLimit(int64(c.PayloadBytes))
	if os.Getenv("GOMEMLIMIT") != "" {
		log.Info("GOMEMLIMIT is set, and holds instead of the server's own", "bytes", debug.SetMemoryLimit(-1), "own", limit)
		return
	}
	var mu sync.Mutex
	adjust := func() {
		mu.Lock()
		defer mu.Unlock()
		debug.SetMemoryLimit(limit - s.SharedBytes())
	}
	adjust()
	s.WatchShared(adjust)
}

// memoryLimit is what the collector has the heap keep to. A tenth of the payloads is for all
// else on the heap, and for garbage: with the pages of the program itself, some 20 MiB that the
// collector does not count, and what it is late by, the process stays within a quarter. It
// counts the ballast. Payloads in shared memory are no part of the heap, and are subtracted.
func memoryLimit(payloads int64) int64 {
	return payloads + min(max(payloads/10, 16<<20), 512<<20) + ballastBytes
}
