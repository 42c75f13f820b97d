package server

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the one seed that TestSeeds plays; 0: as -seeds says")
	seedsFlag = flag.Uint64("seeds", 0, "how many seeds TestSeeds plays; 0: a few")
	fromFlag  = flag.Uint64("from", 1, "the first of these")
)

// TestSeeds plays a scene for each seed. One that fails prints the command that repeats it.
func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		for _, line := range playSeed(t, *seedFlag) {
			t.Error(line)
		}
		return
	}
	seeds := *seedsFlag
	if seeds == 0 {
		seeds = uint64(budgettest.Rounds(160))
	}
	last := *fromFlag - 1 + seeds
	t.Cleanup(func() { t.Logf("answers: %v", outcomes.count) })
	var next atomic.Uint64
	next.Store(*fromFlag - 1)
	var failed atomic.Bool // the first that fails ends the test
	for range runtime.GOMAXPROCS(0) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			for seed := next.Add(1); seed <= last && !failed.Load(); seed = next.Add(1) {
				if wrong := playSeed(t, seed); len(wrong) > 0 {
					failed.Store(true)
					t.Errorf("seed %d; to repeat it:\n	%s\n%s", seed, repeat(seed), strings.Join(wrong[:min(len(wrong), 20)], "\n"))
				}
			}
		})
	}
}

func repeat(seed uint64) string {
	return fmt.Sprintf("go test -count=1 -run 'TestSeeds$' ./server -seed %d", seed)
}

// TestSameSeed: a seed has the same requests each time. It logs how many seeds have the same
// history, to the nanosecond; server/DESIGN.md explains why not all do.
func TestSameSeed(t *testing.T) {
	seeds, same := budgettest.Rounds(10), 0
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		one, other := play(t, seed), play(t, seed)
		if one.hash() == other.hash() {
			same++
		}
		again := other.dealt()
		for client, questions := range one.dealt() {
			n := min(len(questions), len(again[client])) // a connection may end earlier
			if !slices.Equal(questions[:n], again[client][:n]) {
				t.Errorf("seed %d: %s asked %q, and then %q", seed, client, questions, again[client])
			}
		}
	}
	t.Logf("%d of %d seeds have the same history", same, seeds)
}

// outcomes counts the answers of all scenes.
var outcomes struct {
	mu    sync.Mutex
	count map[kind]int
}

// playSeed plays the scene of a seed, and returns its faults.
func playSeed(t *testing.T, seed uint64) (wrong []string) {
	h := play(t, seed)
	outcomes.mu.Lock()
	defer outcomes.mu.Unlock()
	if outcomes.count == nil {
		outcomes.count = make(map[kind]int)
	}
	for _, q := range h.questions {
		for _, a := range q.answers {
			outcomes.count[kind(q.client.door+" "+q.model+" ")+a.kind]++
		}
	}
	return h.wrong
}

func play(t *testing.T, seed uint64) (h *history) {
	defer budgettest.Within(2*time.Minute, func() string { return fmt.Sprintf("seed %d; to repeat it:\n	%s", seed, repeat(seed)) })()
	defer func() {
		if p := recover(); p != nil { // for example when a goroutine waits for ever
			panic(fmt.Sprintf("seed %d; to repeat it:\n	%s\n%v", seed, repeat(seed), p))
		}
	}()
	labelTraces()
	pprof.Do(context.Background(), pprof.Labels("repeat", repeat(seed)), func(context.Context) {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, seed)
			if os.Getenv(crashes) != "" {
				time.AfterFunc(time.Second, func() { panic("on purpose") })
			}
			s.play()
			h = s.history
		})
	})
	return h
}

// labelTraces makes the trace of a crash show all goroutines and their labels. A panic in a
// goroutine of the server ends the process, so the test cannot report its seed; but a goroutine
// inherits the labels of the one that starts it, so most goroutines of a scene carry its seed.
// Functions of timers inherit none: their trace names the bubble, in which other goroutines carry
// it.
var labelTraces = sync.OnceFunc(func() {
	os.Setenv("GODEBUG", os.Getenv("GODEBUG")+",tracebacklabels=1")
	debug.SetTraceback("all")
})

// crashes, in the environment, makes a goroutine of each scene panic.
const crashes = "SHIVAD_TEST_CRASHES"

// The trace of a crash in a goroutine of the server names the seed.
func TestCrashNamesItsSeed(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, "-test.run", "^TestSeeds$", "-seed", "7")
	c.Env = append(os.Environ(), crashes+"=1")
	out, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: on purpose") || !strings.Contains(string(out), "TestSeeds$' ./server -seed 7") {
		t.Errorf("the process ended with %v and said %s, expected a panic and the command that repeats it", err, out)
	}
}
