// Package budgettest bounds what tests take, in every package: the time of each input of a fuzz
// target, of each step of a test and of each wait; and goroutines and descriptors, none of which
// may be left, even where tests run in parallel.
//
// A decoder that loops forever on some input is the worst bug that a fuzzer can find, and the one
// that `go test -fuzz` does not report: a worker that hangs is killed when the time is over, and
// the run passes.
package budgettest

import (
	"flag"
	"os"
	"runtime"
	"testing"
	"time"
)

// Input ends the process with the stacks of its goroutines when t takes more than 5 s, which no
// decoder input should, however busy the machine. A fuzz target calls it first; the fuzzer then
// reports the input as a crash.
func Input(t testing.TB) {
	t.Cleanup(Within(5*time.Second, t.Name))
}

// Within starts a time budget, which done ends. If the budget runs out first, the process ends with
// the stacks of its goroutines, since nothing else ends an infinite loop; what describes the work.
func Within(budget time.Duration, what func() string) (done func()) {
	timer := time.AfterFunc(budget, func() { panic("not done after " + budget.String() + ": " + what()) })
	return func() { timer.Stop() }
}

// patience is long, since only a failing test waits that long, and a busy machine is slow.
const patience = time.Minute

// Until waits for a condition that other goroutines or processes are about to make true. After a
// minute it fails the test, and prints what and the stacks of all goroutines. Call it on the test's
// goroutine, where it polls ok.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for begun := time.Now(); !ok(); {
		waited := time.Since(begun)
		if waited > patience {
			stacks := make([]byte, 1<<18)
			t.Fatalf("not within %v: %s\n%s", patience, what, stacks[:runtime.Stack(stacks, true)])
		}
		// Poll less often as the wait gets longer: a condition may be expensive, such as a page of
		// metrics.
		time.Sleep(max(time.Millisecond, waited/20))
	}
}

// slower is the slowdown of repeated work under the race detector, at least; fewer is how many
// times as often a test repeats its work in "make test" as in "go test ./...".
const slower, fewer = 5, 20

// Whole reports whether a test does all of its work. It does a part under the race detector, and
// unless SHIVA_REQUIRE=all is in the environment, as in "make test": so a plain "go test ./..."
// checks a change soon.
func Whole() bool { return !Race && os.Getenv("SHIVA_REQUIRE") == "all" }

// Rounds returns how often a test repeats its work, or how much it does at once: n times, a fifth
// of that under the race detector, and a twentieth in a plain "go test"; at least once.
func Rounds(n int) int {
	switch {
	case Race:
		return max(1, n/slower)
	case Whole():
		return n
	}
	return max(1, n/fewer)
}

// OneGoroutine skips a long test of one goroutine, or of several that share nothing, under the race
// detector, which finds nothing in it and makes it take ten times as long. That they share nothing
// is for a short test that is not skipped.
func OneGoroutine(t testing.TB) {
	t.Helper()
	if Race {
		t.Skip("one goroutine has no races")
	}
}

// atOnce is how many tests RunWaiting runs at the same time.
const atOnce = "8"

// RunWaiting runs the tests of a package whose parallel tests mostly wait: they need no core each,
// so more of them run at once than by default, unless the flag -parallel is given.
func RunWaiting(m *testing.M) (code int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", atOnce) // every test binary has this flag
	}
	return m.Run()
}
