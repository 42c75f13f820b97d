package server

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/config"
)

func TestWaitingLoops(t *testing.T) {
	for _, c := range []struct {
		tcp  config.TCP
		want int
	}{
		{config.TCP{}, 0},
		{config.TCP{Loops: 3}, 0}, // the door is closed
		{config.TCP{Listen: config.Addrs{":0"}}, 2},
		{config.TCP{Listen: config.Addrs{":0"}, Loops: 3}, 3},
	} {
		if got := waitingLoops(c.tcp, 4); got != c.want {
			t.Errorf("%+v on 4 processors: %d loops, expected %d", c.tcp, got, c.want)
		}
	}
}

// TestFollowProcessors: a server that may use two of the machine's processors has no more threads
// than these and its loops need, and follows when the limit changes. The environment's GOMAXPROCS
// and Go's own default are left alone.
func TestFollowProcessors(t *testing.T) {
	defer runtime.SetDefaultGOMAXPROCS()
	listening := config.TCP{Listen: config.Addrs{":0"}}
	synctest.Test(t, func(t *testing.T) {
		var may atomic.Int64
		may.Store(2)
		stop := followProcessors(listening, func() int { return int(may.Load()) })
		defer stop()
		if n := runtime.GOMAXPROCS(0); n != 3 {
			t.Errorf("%d threads for 2 processors and a loop", n)
		}
		may.Store(5)
		time.Sleep(2 * threadsEvery)
		if n := runtime.GOMAXPROCS(0); n != 6 {
			t.Errorf("%d threads for 5 processors and a loop", n)
		}
		may.Store(1)
		time.Sleep(2 * threadsEvery)
		if n := runtime.GOMAXPROCS(0); n != 2 {
			t.Errorf("%d threads for a processor and a loop", n)
		}
	})
	runtime.SetDefaultGOMAXPROCS()
	before := runtime.GOMAXPROCS(0)
	followProcessors(config.TCP{}, func() int { return 99 })()
	t.Setenv("GOMAXPROCS", "1")
	followProcessors(listening, func() int { return 99 })()
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d threads, expected the %d that were", n, before)
	}
}
