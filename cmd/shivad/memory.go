package main

import (
	"os"
	"runtime/debug"

	"github.com/shivad/shivad/server/config"
)

// tuneGC sets the garbage collector for a server whose memory is mostly payloads, which a pool with a
// budget reuses: what is left for the collector is little, and the runtime's default would have it run
// dozens of times a second over a heap of a few megabytes. The memory limit is for what the pool lets go:
// it is garbage until the next collection. GOGC and GOMEMLIMIT in the environment go first.
func tuneGC(c config.Limits) {
	const (
		percent = 400
		beside  = 512 << 20 // for everything that is no payload
	)
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.PayloadBytes) + beside)
	}
}
