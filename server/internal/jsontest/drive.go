package jsontest

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shivad/shivad/shiva/budgettest"
)

// count is how many requests Drive makes: the default of each test keeps "make test" short; "make
// soak" requests a million.
var count = flag.Int("mutants", 0, "requests that tests make of random choices; 0: as many as each test says")

// budget is how long one request may take. Most take less than a millisecond.
const budget = 5 * time.Second

// Within starts the time budget of one request; done ends it. If the budget runs out first, the
// process exits and prints the stacks of its goroutines and the result of what, which identifies
// the request.
func Within(what func() string) (done func()) { return budgettest.Within(budget, what) }

// A Tally counts the answers to a test's requests by kind. Only one goroutine may use it.
type Tally struct {
	kinds                  map[string]int
	good, refused, answers int
}

// Good counts an answer that has the requested result.
func (t *Tally) Good(kind any) { t.good++; t.add(kind) }

// Refused counts an answer that says what is wrong with the request.
func (t *Tally) Refused(kind any) { t.refused++; t.add(kind) }

// Other counts any other answer, such as an exceeded deadline.
func (t *Tally) Other(kind any) { t.add(kind) }

// String says how many answers there were of each kind.
func (t *Tally) String() string { return fmt.Sprint(t.kinds) }

func (t *Tally) add(kind any) {
	if t.kinds == nil {
		t.kinds = map[string]int{}
	}
	t.kinds[fmt.Sprint(kind)]++
	t.answers++
}

// Drive calls run with n strings of random choices, the same in every test run, or with as many as
// [budgettest.Rounds] or the flag -mutants says. If nearly all the answers that run counted were
// refusals, or nearly none were, the requests were not close enough to right ones: that fails t as
// well.
func Drive(t *testing.T, n int, tally *Tally, run func(Choices)) {
	t.Helper()
	n = budgettest.Rounds(n)
	if *count > 0 {
		n = *count
	}
	random := rand.New(rand.NewPCG(20, 26))
	choices := make([]byte, 64)
	for range n {
		for i := 0; i < len(choices); i += 8 {
			binary.LittleEndian.PutUint64(choices[i:], random.Uint64())
		}
		run(choices)
	}
	t.Logf("%d times, answered %v", n, tally)
	if least := tally.answers / 10; tally.answers < n/2 || tally.good < least || tally.refused < least {
		t.Errorf("of %d answers, %d are good and %d refuse; at least %d should be either", tally.answers, tally.good,
			tally.refused, least)
	}
}

// Fuzz calls run with choices that the fuzzer derives from seeds: each is lead, followed by a
// choice of one of n samples. Each call has the time budget of one input, and reports its failures
// to its t.
func Fuzz(f *testing.F, n int, lead []byte, run func(*testing.T, Choices)) {
	for i := range n {
		f.Add(append(lead[:len(lead):len(lead)], byte(i)))
		f.Add(append(lead[:len(lead):len(lead)], byte(i), 2, 3, 1, 4, 1, 5, 9, 2, 6, 5))
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		budgettest.Input(t)
		run(t, choices)
	})
}
