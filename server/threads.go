package server

import (
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/tcp"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// waitingLoops returns the number of event loops that serve clients over TCP. A loop waits in
// epoll_wait, which the runtime takes for a short system call: the thread keeps its slot until
// sysmon retakes it, up to 10 ms later. So each needs a slot besides those of the processors. With
// as many loops as the default GOMAXPROCS, containers' answers and timers waited for that: at half
// load, the p50 of a model that takes 13 ms was 32 ms instead of 15.
func waitingLoops(c config.TCP, processors int) int {
	switch {
	case !slices.ContainsFunc(c.Listen, func(addr string) bool { _, unix := unixsocket.Cut(addr); return !unix }):
		return 0
	case c.Loops == 0:
		return tcp.DefaultLoops(processors)
	}
	return c.Loops
}

// threadsEvery is how often the number of processors is looked up: an orchestrator may change it
// while the server runs.
const threadsEvery = 10 * time.Second

// FollowProcessors keeps GOMAXPROCS at one for each processor and each loop that waits, until the
// returned function is called. Without such loops Go's own default is right, and follows by itself,
// and the environment variable has its way in any case. It is for programs that do nothing but
// serve, once: New does not call it.
func FollowProcessors(c config.TCP) (stop func()) { return followProcessors(c, capacity.Processors) }

func followProcessors(c config.TCP, count func() int) (stop func()) {
	loops := waitingLoops(c, count())
	if loops == 0 || os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	last := 0
	set := func() {
		if now := count() + loops; now != last {
			runtime.GOMAXPROCS(now)
			last = now
		}
	}
	set()
	ended, over := make(chan struct{}), make(chan struct{})
	go func() { // ends with stop, which joins it
		defer close(over)
		ticker := time.NewTicker(threadsEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				set()
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-over }
}
