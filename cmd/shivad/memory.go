package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/shivad/shivad/server/config"
)

// ballastBytes are never touched, so they cost nothing but addresses.
const ballastBytes = 32 << 20

// tuneGC prepares the garbage collector, and returns ballast to be kept alive as long as the
// server runs.
//
// Payloads are pooled; what else the server has is a few megabytes, over which the collector
// would run dozens of times a second, since it runs when the heap has doubled. With the ballast
// it waits for 32 MiB of garbage. The memory limit is for what the pool lets go, which is
// garbage until the next collection. GOGC and GOMEMLIMIT in the environment go first.
func tuneGC(c config.Limits, log *slog.Logger) (ballast []byte) {
	if os.Getenv("GOGC") == "" {
		ballast = make([]byte, ballastBytes)
	}
	limit := memoryLimit(int64(c.PayloadBytes))
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	} else {
		log.Info("GOMEMLIMIT is set, and holds instead of the server's own", "bytes", debug.SetMemoryLimit(-1), "own", limit)
	}
	return ballast
}

// memoryLimit is what the collector has the heap keep to. A tenth of the payloads is for all
// else on the heap, and for garbage: with the pages of the program itself, some 20 MiB that the
// collector does not count, and what it is late by, the process stays within a quarter. It
// counts the ballast.
func memoryLimit(payloads int64) int64 {
	return payloads + min(max(payloads/10, 16<<20), 512<<20) + ballastBytes
}
