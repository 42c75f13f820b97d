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

// count is how many requests Drive makes: each test's own number keeps "make test" short, and
// "make mutants" asks for a million.
var count = flag.Int("mutants", 0, "requests that tests make of random choices; 0: as many as each test says")

// budget is what one request may take. Most take less than a millisecond.
const budget = 5 * time.Second

// Within begins the budget of time of one request, which done ends. When it is over before
// that, the process ends with the stacks of its goroutines and with what says which request it
// was.
func Within(what func() string) (done func()) { return budgettest.Within(budget, what) }

// A Tally counts the answers to what a test makes, by what kind of answer they are. It is for
// one goroutine.
type Tally struct {
	kinds                  map[string]int
	good, refused, answers int
}

// Good counts an answer that has what was asked for.
func (t *Tally) Good(kind any) { t.good++; t.note(kind) }

// Refused counts an answer that says what is wrong with the request.
func (t *Tally) Refused(kind any) { t.refused++; t.note(kind) }

// Other counts any other answer, such as that of a deadline.
func (t *Tally) Other(kind any) { t.note(kind) }

// String says how many answers there were of each kind.
func (t *Tally) String() string { return fmt.Sprint(t.kinds) }

func (t *Tally) note(kind any) {
	if t.kinds == nil {
		t.kinds = map[string]int{}
	}
	t.kinds[fmt.Sprint(kind)]++
	t.answers++
}

// Drive runs run with n strings of random choices, the same in every run, or with as many as
// [budgettest.Rounds] or the flag -mutants says. If nearly all that run has counted were refused,
// or nearly none, the requests were not nearly right: that fails t as well.
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
		t.Errorf("of %d answers, %d are good and %d refuse; at least %d should be either", tally.answers, tally.good, tally.refused, least)
	}
}

// Fuzz runs run with choices that the fuzzer makes of those that begin with lead and then
// choose one of n samples. Each run has the budget of an input, and the t that its failures are
// reported to.
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
