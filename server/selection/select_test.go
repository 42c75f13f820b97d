package selection_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/budgettest"
)

// users returns the model of each of n users.
func users(t *testing.T, p *selection.Policy, s selection.State, n int, without ...selection.Model) []selection.Model {
	t.Helper()
	chosen := make([]selection.Model, n)
	for i := range chosen {
		plan, err := p.Select(s,
			selection.Request{User: fmt.Sprint("user-", i), Random: uint64(i) * 77, Without: without})
		if err != nil {
			t.Fatal(err)
		}
		chosen[i] = plan.Asks[0].Model
	}
	return chosen
}

// moved counts the users that changed models, by old and new model.
func moved(before, after []selection.Model) map[[2]string]int {
	moves := map[[2]string]int{}
	for i := range before {
		if before[i] != after[i] {
			moves[[2]string{before[i].String(), after[i].String()}]++
		}
	}
	return moves
}

// Users are split by the weights, stay with their model whatever the random number, and move only
// as far as a change of weights or models requires.
func TestSplitIsSticky(t *testing.T) {
	budgettest.OneGoroutine(t)
	const n = 20000
	m := models(3)
	split := func(weights map[string]any, salt string) *selection.Policy {
		return parse(t, "split", map[string]any{"weights": weights, "salt": salt})
	}
	near := func(what string, got int, want float64) {
		t.Helper()
		if slack := 5 * math.Sqrt(n*want*(1-want)); math.Abs(float64(got)-n*want) > slack {
			t.Errorf("%s are %d of %d users, want %.0f ± %.0f", what, got, n, n*want, slack)
		}
	}
	count := func(chosen []selection.Model, m selection.Model) (c int) {
		for _, x := range chosen {
			if x == m {
				c++
			}
		}
		return c
	}

	p := split(map[string]any{"m0": 90, "m1/1": 10}, "")
	s := fresh(t, p, m)
	before := users(t, p, s, n)
	near("those of m0", count(before, m[0]), 0.9)
	near("those of m1", count(before, m[1]), 0.1)
	if c := count(before, m[2]); c != 0 {
		t.Errorf("m2 has no weight and %d users", c)
	}

	wider := split(map[string]any{"m0": 80, "m1": 20}, "")
	moves := moved(before, users(t, wider, s, n))
	near("those who moved to m1", moves[[2]string{"m0/1", "m1/1"}], 0.1)
	if len(moves) != 1 {
		t.Errorf("users moved %v, want from m0 to m1 only", moves)
	}

	third := split(map[string]any{"m0": 90, "m1": 10, "m2": 100}, "")
	for move := range moved(before, users(t, third, s, n)) {
		if move[1] != "m2/1" {
			t.Errorf("users moved from %s to %s when m2 was given a weight", move[0], move[1])
		}
	}
	for move := range moved(users(t, third, s, n), users(t, third, s, n, m[2])) {
		if move[0] != "m2/1" {
			t.Errorf("users moved from %s to %s when m2 could not be asked", move[0], move[1])
		}
	}

	next, err := replaced(p, s, m[1], selection.Model{Name: "m1", Version: "2"})
	if err != nil {
		t.Fatal(err)
	}
	moves = moved(before, users(t, p, next, n))
	if len(moves) != 1 || moves[[2]string{"m1/1", "m1/2"}] != count(before, m[1]) {
		t.Errorf("users moved %v when m1 was updated, want the %d of m1 to its new version", moves, count(before, m[1]))
	}

	other := moved(users(t, split(map[string]any{"m0": 1, "m1": 1}, "x"), s, n),
		users(t, split(map[string]any{"m0": 1, "m1": 1}, "y"), s, n))
	near("those whom another salt moves", other[[2]string{"m0/1", "m1/1"}]+other[[2]string{"m1/1", "m0/1"}], 0.5)
}

// Models that cannot be asked are not asked, and the probabilities are those among the other
// models.
func TestWithout(t *testing.T) {
	m := models(4)
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		s := learned(t, p, 4)
		for i := range 200 {
			plan, err := p.Select(s, selection.Request{Random: uint64(i), Without: []selection.Model{m[3], m[2]}})
			if err != nil {
				t.Fatal(err)
			}
			for _, ask := range plan.Asks {
				if ask.Model == m[2] || ask.Model == m[3] {
					t.Fatalf("%s asks %s", v, ask.Model)
				}
			}
		}
		if _, err := p.Select(s, selection.Request{Without: m}); err == nil || !strings.Contains(err.Error(), "none of the models can be asked now") {
			t.Errorf("%s without any model: %v", v, err)
		}
	}
	p := parse(t, "single", map[string]any{"model": "m0"})
	if _, err := p.Select(fresh(t, p, m), selection.Request{Without: m[:1]}); err == nil ||
		!strings.Contains(err.Error(), `"m0"`) {
		t.Errorf("single without its model: %v", err)
	}
	// Two models of exp3 with nothing learned: the other model has probability 1.
	p = parse(t, "exp3", nil)
	plan, err := p.Select(fresh(t, p, m[:2]), selection.Request{Without: m[:1]})
	if err != nil || plan.Asks[0] != (selection.Ask{Model: m[1], Probability: 1}) {
		t.Errorf("exp3 without one of two: %+v (%v)", plan, err)
	}
}

// Select and Shares fail for a state that does not fit: the policy's parameters have changed, or it
// is another policy's state.
func TestSelectRefused(t *testing.T) {
	s := fresh(t, parse(t, "single", map[string]any{"model": "m0"}), models(2))
	for _, c := range []struct {
		policy string
		params map[string]any
		fault  string
	}{
		{"exp3", nil, `state of policy "single"`}, {"single", map[string]any{"model": "x"}, `"x", which is none`},
		{"single", nil, "must say which"},
	} {
		p := parse(t, c.policy, c.params)
		if plan, err := p.Select(s, selection.Request{}); err == nil || !strings.Contains(err.Error(), c.fault) ||
			plan.Asks != nil {
			t.Errorf("%s: %+v (%v), want an error with %q", c.policy, plan, err, c.fault)
		}
		if _, err := p.Shares(s); err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: shares with %v, want an error with %q", c.policy, err, c.fault)
		}
	}
}

// shadow copies the configured fraction of requests.
func TestShadowFraction(t *testing.T) {
	const n = 20000
	p := parse(t, "shadow", map[string]any{"model": "m0", "fraction": 0.2})
	s := fresh(t, p, models(3))
	copies := 0
	for i := range n {
		plan, err := p.Select(s, selection.Request{Random: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		switch len(plan.Asks) {
		case 1:
		case 3:
			copies++
			if !plan.Asks[2].Shadow || plan.Asks[2].Probability != 0.2 {
				t.Fatalf("asks %+v", plan.Asks)
			}
		default:
			t.Fatalf("asks %+v", plan.Asks)
		}
	}
	if math.Abs(float64(copies)-0.2*n) > 5*math.Sqrt(n*0.2*0.8) {
		t.Errorf("%d of %d requests were copied, want a fifth", copies, n)
	}
}
