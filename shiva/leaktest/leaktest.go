// Package leaktest finds the goroutines and descriptors that tests leave behind, also those of
// tests that run at once.
//
// To count all goroutines of the process before and after a test takes a test that runs alone. Here
// they carry the name of their test as a profiler's label, which each inherits from the one that
// starts it: so a test finds its own, whatever others do. Not all inherit it (a timer's function
// does not), and descriptors have no labels: those are counted once, when all tests have ended.
package leaktest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// label is the key of the profiler's label. Values are numbers, since a test may run several times.
const label = "leaktest"

var last atomic.Int64

// Goroutines checks, after what the test registers as cleanup from now on, that every goroutine
// which it has started since, or which one of those has, ends. It is called on the goroutine of the
// test, and again for a second rig; a fuzz target is not checked, since the fuzzer's are among its
// goroutines.
func Goroutines(t testing.TB) {
	t.Helper()
	if _, fuzzing := t.(*testing.F); fuzzing {
		return
	}
	mine := strconv.FormatInt(last.Add(1), 10)
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, mine)))
	t.Cleanup(func() {
		pprof.SetGoroutineLabels(context.Background())
		budgettest.Until(t, "the goroutines of "+t.Name()+" to end", func() bool { return !labelled(mine) })
	})
}

// labelled reports whether a goroutine has the label.
func labelled(value string) bool {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // a Builder takes everything
	return strings.Contains(all.String(), fmt.Sprintf("%q:%q", label, value))
}

// Main runs the tests of a package, with run, and fails if they leave goroutines or descriptors
// behind. It returns the code to exit with.
func Main(m *testing.M, run func(*testing.M) int) int {
	openPoller()
	watchSignals()
	goroutines, descriptors := runtime.NumGoroutine(), Descriptors()
	code := run(m)
	var left string
	for end := time.Now().Add(10 * time.Second); code == 0; time.Sleep(time.Millisecond) {
		switch g, d := runtime.NumGoroutine(), Descriptors(); {
		case g > goroutines:
			left = fmt.Sprintf("%d goroutines were left behind", g-goroutines)
		case d > descriptors:
			left = fmt.Sprintf("%d descriptors were left behind", d-descriptors)
		default:
			return code
		}
		if time.Now().After(end) {
			stacks := make([]byte, 1<<18)
			fmt.Printf("%s by the tests\n%s\n", left, stacks[:runtime.Stack(stacks, true)])
			return 1
		}
	}
	return code
}

// Descriptors is how many descriptors the process has, those of the runtime among them.
func Descriptors() int {
	openPoller()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // there are none to be seen on this system
	}
	return len(all)
}

// openPoller makes the runtime open the descriptors of its poller, which would otherwise look like
// those of the first test that uses a socket.
var openPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
})

// watchSignals has the runtime start the goroutine that it keeps for signals, which fuzzing uses.
func watchSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	signal.Stop(c)
}
