// Package budgettest gives each input of a fuzz target, or step of a test, a budget of time,
// for the tests of all rooms.
//
// A decoder that loops for ever on some input is the worst that a fuzzer can find, and the one
// thing that `go test -fuzz` does not report: a worker that hangs is killed when the time is
// over, and the run passes.
package budgettest

import (
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
