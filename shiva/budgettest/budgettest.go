// Package budgettest bounds the time that tests take, in all rooms: each input of a fuzz target,
// each step of a test, each wait.
//
// A decoder that loops for ever on some input is the worst that a fuzzer can find, and the one
// thing that `go test -fuzz` does not report: a worker that hangs is killed when the time is
// over, and the run passes.
package budgettest

import (
	"flag"
	"os"
	"runtime"
	"testing"
	"time"
)

// Input ends the process with the stacks of its goroutines when t takes more than 5 s, which no
// input of a decoder does on however busy a machine. A fuzz target calls it first; the fuzzer
// then reports the input as one that crashes.
func Input(t testing.TB) {
	t.Cleanup(Within(5*time.Second, t.Name))
}

// Within begins a budget of time, which done ends. When it is over before that, the process
// ends with the stacks of its goroutines, since nothing else ends a loop that has no end; what
// says what was being done.
func Within(budget time.Duration, what func() string) (done func()) {
	timer := time.AfterFunc(budget, func() { panic("not done after " + budget.String() + ": " + what()) })
	return func() { timer.Stop() }
}

// patience is long, since only a test that fails waits for so long, and a busy machine is slow.
const patience = time.Minute

// Until waits for a condition that other goroutines or processes are about to make true. After a
// minute it ends the test, with what it waited for and the stacks of all goroutines.
// It is called on the test's goroutine, and calls ok there, again and again.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); {
		waited := time.Since(begun)
		if waited > patience {
			stacks := make([]byte, 1<<18)
			t.Fatalf("not within %v: %s\n%s", patience, what, stacks[:runtime.Stack(stacks, true)])
		}
		// A page of metrics takes longer to make than a millisecond: what takes long to become true
		// is asked for less often.
		time.Sleep(max(time.Millisecond, waited/20))
	}
}

// slower is how many times as long what a test repeats takes under the race detector, at least;
// fewer is how many times as often it is repeated in "make unit" as in "go test ./...".
const slower, fewer = 5, 20

// Whole reports whether a test does all that it can. It does a part under the race detector, and
// unless SHIVA_ROUNDS=all is in the environment, as it is in "make unit": so "go test ./..." tries
// a change in half a minute, and "make test" does everything.
func Whole() bool { return !Race && os.Getenv("SHIVA_ROUNDS") == "all" }

// Rounds is how often a test repeats what it does, or how much it does at once: n times, a fifth of
// that under the race detector, and a twentieth where a change is tried; at least once.
func Rounds(n int) int {
	switch {
	case Race:
		return max(1, n/slower)
	case Whole():
		return n
	}
	return max(1, n/fewer)
}

// atOnce is how many tests RunWaiting has run at the same time.
const atOnce = "8"

// RunWaiting runs the tests of a package in which those that run in parallel mostly wait: they need
// no core each, so more of them run at once, unless the flag -parallel says how many.
func RunWaiting(m *testing.M) (code int) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		_ = flag.Set("test.parallel", atOnce) // which there is in every test's program
	}
	return m.Run()
}
