package main

import (
	"runtime"
	"testing"

	"github.com/shivad/shivad/server/config"
)

func TestThreads(t *testing.T) {
	for _, c := range []struct {
		tcp  config.TCP
		want int
	}{
		{config.TCP{}, 4},
		{config.TCP{Loops: 3}, 4}, // the door is closed
		{config.TCP{Listen: config.Addrs{":0"}}, 6},
		{config.TCP{Listen: config.Addrs{":0"}, Loops: 3}, 7},
	} {
		if got := threads(c.tcp, 4); got != c.want {
			t.Errorf("%+v on 4 processors: %d threads, expected %d", c.tcp, got, c.want)
		}
	}
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	loops := config.TCP{Listen: config.Addrs{":0"}, Loops: before + 1}
	t.Setenv("GOMAXPROCS", "1")
	if raiseThreads(loops); runtime.GOMAXPROCS(0) != before {
		t.Error("the environment is overruled")
	}
	t.Setenv("GOMAXPROCS", "")
	if raiseThreads(loops); runtime.GOMAXPROCS(0) != max(before, runtime.NumCPU()+before+1) {
		t.Errorf("%d threads for %d loops", runtime.GOMAXPROCS(0), loops.Loops)
	}
	raised := runtime.GOMAXPROCS(0)
	if raiseThreads(config.TCP{}); runtime.GOMAXPROCS(0) != raised {
		t.Errorf("%d threads are lowered to %d", raised, runtime.GOMAXPROCS(0))
	}
}
