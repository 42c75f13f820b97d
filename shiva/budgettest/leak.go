package budgettest

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
)

// label is the key of the pprof label. Values are numbers, since a test may run several times.
//
// Counting all goroutines of the process before and after a test only works if the test runs alone.
// Instead, goroutines carry a label that names their test. A goroutine inherits it from the one
// that starts it, so each test finds its own. Some do not (functions of timers), and descriptors
// have no labels: those are counted once, when all tests have ended.
const label = "test"

var lastValue atomic.Int64

// Goroutines checks at the end of the test, after cleanups registered later, that all goroutines
// started from now on by the test or its goroutines have ended. Call it on the test's goroutine; a
// test may call it several times. Fuzz targets are not checked, since they would include the
// fuzzer's own goroutines.
func Goroutines(t testing.TB) {
	t.Helper()
	if _, fuzzing := t.(*testing.F); fuzzing {
		return
	}
	mine := strconv.FormatInt(lastValue.Add(1), 10)
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(label, mine)))
	t.Cleanup(func() {
		pprof.SetGoroutineLabels(context.Background())
		Until(t, "the goroutines of "+t.Name()+" to end", func() bool { return !labelled(mine) })
	})
}

// labelled reports whether a goroutine has the label.
func labelled(value string) bool {
	var all strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&all, 1) // a Builder takes everything
	return strings.Contains(all.String(), fmt.Sprintf("%q:%q", label, value))
}

// RunClean is RunWaiting for a package whose tests must leave no goroutines and no descriptors
// behind: it fails if they do.
func RunClean(m *testing.M) int {
	openPoller()
	watchSignals()
	goroutines, descriptors := runtime.NumGoroutine(), Descriptors()
	code := RunWaiting(m)
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

// Descriptors returns how many descriptors the process has open, including those of the runtime.
func Descriptors() int {
	openPoller()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // this system does not list them
	}
	return len(all)
}

// openPoller makes the runtime open its poller's descriptors, which would otherwise be blamed on
// the first test that uses a socket.
var openPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
})

// watchSignals makes the runtime start its permanent goroutine for signals, which fuzzing uses.
func watchSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	signal.Stop(c)
}
