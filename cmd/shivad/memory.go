package main

import (
	"os"
	"runtime/debug"

	"github.com/shivad/shivad/server/config"
)

// tuneGC prepares the garbage collector, and returns ballast to be kept alive as long as the server runs.
//
// Payloads are pooled; what else the server has is a few megabytes, over which the collector would run
// dozens of times a second, since it runs when the heap has doubled. The ballast is memory that is never
// touched, so it costs nothing but addresses, and with it the collector waits for 32 MiB of garbage. The memory
// limit is for what the pool lets go, which is garbage until the next collection. GOGC and GOMEMLIMIT in the
// environment go first.
func tuneGC(c config.Limits) (ballast []byte) {
	const beside = 512 << 20 // for everything that is no payload
	if os.Getenv("GOGC") == "" {
		ballast = make([]byte, 32<<20)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(c.PayloadBytes) + beside)
	}
	return ballast
}
