package selection

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// After a million equal losses, without forgetting, numbers are finite, shares sum to 1, and the
// JSON can be read. The test calls only Learn, which changes the numbers.
func TestNumbersStayFinite(t *testing.T) {
	budgettest.OneGoroutine(t)
	for _, c := range []struct {
		policy string
		params map[string]any
	}{
		{"exp3", map[string]any{"share": 0., "gamma": 0.9}}, {"exp4", map[string]any{"share": 0., "eta": 10.}},
		{"thompson", map[string]any{"decay": 1.}},
	} {
		p, err := Parse(c.policy, c.params)
		if err != nil {
			t.Fatal(err)
		}
		s, err := p.New([]Model{{"good", "1"}, {"bad", "1"}})
		if err != nil {
			t.Fatal(err)
		}
		losses, probabilities := []float64{1, 0}, []float64{0, 0.5}
		switch c.policy {
		case "exp3":
			losses, probabilities = []float64{1, math.NaN()}, []float64{0.5, 0}
		case "thompson":
			losses[0] = math.NaN()
		}
		for range budgettest.Rounds(1_000_000) {
			p.algorithm.Learn(s.Models, losses, probabilities)
			s.level()
		}
		shares, err := p.Shares(s)
		if err != nil || !(math.Abs(shares[0]+shares[1]-1) < 1e-9) || !(shares[1] > shares[0]) {
			t.Errorf("%s: shares %v (%v)", p.Name(), shares, err)
		}
		text, err := json.Marshal(s)
		var read State
		if err != nil || json.Unmarshal(text, &read) != nil || !reflect.DeepEqual(read, s) {
			t.Errorf("%s: %+v writes as %s (%v)", p.Name(), s, text, err)
		}
	}
}

// The heaviest model is late, and the others weigh less than the least number above 0: they
// still decide by weight.
func TestWeightsBeyondFloats(t *testing.T) {
	arms := []Arm{{LogWeight: 0}, {LogWeight: -2000}, {LogWeight: -2001}}
	logs := []float64{arms[1].LogWeight, arms[2].LogWeight}
	softmax(logs)
	if want := 1 / (1 + math.Exp(-1)); math.Abs(logs[0]-want) > 1e-12 {
		t.Errorf("softmax of -2000 and -2001 gives %v, want %g first", logs, want)
	}
	if sum := logSum(arms, 0); math.Abs(sum-(-2000+math.Log(1+math.Exp(-1)))) > 1e-9 {
		t.Errorf("sum of the two is e^%g", sum)
	}
	none := []float64{math.Inf(-1), math.Inf(-1)}
	if softmax(none); none[0] != 0.5 || none[1] != 0.5 {
		t.Errorf("two models without weight get %v", none)
	}
}

// Beta variates have the mean a/(a+b) and the variance ab/((a+b)^2 (a+b+1)), within five
// standard errors; and normal numbers those of the normal distribution.
func TestVariates(t *testing.T) {
	const n = 50000
	check := func(what string, draw func() float64, mean, variance float64) {
		var sum, squares float64
		for range n {
			x := draw()
			sum += x
			squares += (x - mean) * (x - mean)
		}
		if got := sum / n; math.Abs(got-mean) > 5*math.Sqrt(variance/n) {
			t.Errorf("%s: mean %g, want %g", what, got, mean)
		}
		// No distribution here has a fourth moment much above three times the variance squared.
		if got := squares / n; math.Abs(got-variance) > 5*variance*math.Sqrt(6./n) {
			t.Errorf("%s: variance %g, want %g", what, got, variance)
		}
	}
	for _, c := range [][2]float64{{1, 1}, {1, 5}, {3, 2}, {400, 100}, {1, 1e7}, {1e7, 1e7}} {
		a, b := c[0], c[1]
		dice := random(7)
		check("beta", func() float64 { return dice.beta(a, b) }, a/(a+b), a*b/((a+b)*(a+b)*(a+b+1)))
	}
	dice := random(8)
	check("normal", dice.normal, 0, 1)
	check("uniform", dice.float, 0.5, 1./12)
}

func TestDraw(t *testing.T) {
	p := []float64{0, 0.25, 0, 0.75, 0}
	for u, want := range map[float64]int{0: 1, 0.2499: 1, 0.25: 3, 0.9999: 3, 1 - 1e-17: 3} {
		if got := draw(p, u); got != want {
			t.Errorf("%g falls on %d, want %d", u, got, want)
		}
	}
}

func TestNamesAreAllPolicies(t *testing.T) {
	names := Names()
	for _, name := range names {
		if p, err := Parse(name, nil); err != nil || p.Name() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(names) != len(registry.kinds) {
		t.Errorf("%d names for %d policies", len(names), len(registry.kinds))
	}
}
