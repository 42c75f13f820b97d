package main

import (
	"os"
	"runtime"
	"slices"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/tcp"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// threads returns how many threads may run Go code at once: one for each processor, and one more
// for each event loop that serves clients over TCP. A loop waits in epoll_wait, which the runtime
// takes for a short system call: the thread keeps its slot until sysmon retakes it, up to 10 ms
// later. With as many loops as the default GOMAXPROCS, containers' answers and timers waited for
// that: at half load, the p50 of a model that takes 13 ms was 32 ms instead of 15.
func threads(c config.TCP, processors int) int {
	switch {
	case !slices.ContainsFunc(c.Listen, func(addr string) bool { _, unix := unixsocket.Cut(addr); return !unix }):
		return processors
	case c.Loops == 0:
		return processors + tcp.DefaultLoops(processors)
	}
	return processors + c.Loops
}

// raiseThreads raises GOMAXPROCS to threads, unless the environment sets it.
func raiseThreads(c config.TCP) {
	if want := threads(c, runtime.NumCPU()); os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) < want {
		runtime.GOMAXPROCS(want)
	}
}
