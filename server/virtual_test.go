// The whole server on virtual time.
//
// TestSeeds plays scenes: a server with all doors, operators, clients and containers in one bubble
// of testing/synctest. The network is in memory (shiva/shivatest), with TLS if the seed chooses it,
// processes that the server starts are goroutines behind operate.Supervisor, the scheduler's clock
// is the bubble's, and nothing else of the server is replaced (surroundings.go). The Shiva door's
// connections use the transport of Unix sockets and TLS, since gnet needs descriptors.
//
// A seed decides what takes part and what goes wrong:
//
//   - how many clients, at which door (including ModelStreamInfer), with which token or
//     certificate; when each asks what, and how long it waits; which clients are cameras, and how
//     many of their frames may wait;
//   - how much the network buffers and in which pieces it delivers; connections that are cut after
//     any byte, even in a handshake, that stall or are closed;
//   - containers of every generation of the RPC, v0 to v4, that die, hang, fail, answer twice or
//     send garbage, and come back; two versions of a model, either of which may be the default;
//   - an application that learns from feedback; a store that cannot be written;
//   - containers shared with other servers, which grant batches late, not at all or while they
//     execute any number of rows elsewhere, or report that they are this server's alone again;
//   - detectors of Frigate with a model of their own, whose images have 180 ms;
//   - orders at the admin door (applications, settings, processes, reloads, read-only requests) and
//     loads and unloads of a model over REST, by identities with and without the right;
//   - clients whose tensors are in shared memory, files that they truncate, and regions that they
//     unregister while requests need them;
//   - reloads of settings, of rights and quotas of identities and addresses, of certificates; a
//     wall clock that is set back; a server that stops for up to three seconds, after which its
//     time jumps ahead; a shutdown in the middle.
//
// Each actor has its own random source, so that its choices do not depend on when another runs. At
// the end all faults stop, and every door must answer.
//
// The oracle (virtual_oracle_test.go) then judges each request: it has one answer unless its
// connection was broken; a successful answer has the request's own rows and the sign of a version
// that may have been asked, and a container has computed it; on a connection, and on a
// ModelStreamInfer, answers come in order; no answer is later than its deadline or the answer
// before it; each error has its cause in the scene; no row is executed after its answer, nor twice
// without a fault; no row of a client that lacked the right, under any configuration that may have
// been in effect, ever reaches a container, and no row reaches a container that may not serve. For
// several requests together (virtual_order_test.go): no request is admitted beyond a quota:
// containers show which were in flight, and GCRA bounds the rates over every span of time; frames
// of a stream are answered in order, no two are in one batch, no more wait than may, and each
// superseded frame was superseded by a newer one; feedback is learned once. For orders
// (virtual_orders_test.go): each gets the answer that its identity's rights imply, changes are
// shown, and the audit has every change and every refusal once and nothing else; no row reaches a
// process of a model that is unloaded, and a loaded model has a process. For shared memory: no
// answer succeeds whose region was unregistered or truncated all the time, and none is refused for
// a region that exists. After the end no payload, quota, region, process or goroutine is left.
//
// A seed reproduces everything that actors decide. Goroutines that are ready at the same instant of
// virtual time run in the order of Go's scheduler, so two plays may differ when two things happen
// at once, such as which of two idle containers gets a batch. TestSameSeed counts how many seeds
// have a different history the second time. So try a seed that fails ten times. A panic in a
// goroutine of the server ends the process; its trace names the seed, since goroutines inherit the
// label of the test that plays it.
//
// TestPlantedBugs shows that all this finds bugs. It has the compiler use changed copies of files
// (go build -overlay), each bug behind an environment variable, so that ordinary builds contain no
// trace of them. make seeds plays 10,000 seeds, then says which bugs can no longer be planted since
// the text that they replace has changed, and plants each of the others.

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
					t.Errorf("seed %d; to repeat it:\n	%s\n%s", seed, repeat(seed),
						strings.Join(wrong[:min(len(wrong), 20)], "\n"))
				}
			}
		})
	}
}

func repeat(seed uint64) string {
	return fmt.Sprintf("go test -count=1 -run 'TestSeeds$' ./server -seed %d", seed)
}

// TestSameSeed: a seed has the same requests each time. It logs how many seeds have the same
// history, to the nanosecond; the top of this file explains why not all do.
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
	defer budgettest.Within(2*time.Minute, func() string {
		return fmt.Sprintf("seed %d; to repeat it:\n	%s", seed, repeat(seed))
	})()
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
