package selection_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/budgettest"
)

// variant is a policy with parameters other than its defaults, so that the tests cover more of it.
type variant struct {
	policy string
	params map[string]any
}

// variants are all policies, with parameters that every set of models named m0, m1, ... fits.
func variants() []variant {
	return []variant{
		{"single", map[string]any{"model": "m0"}},
		{"split", nil},
		{"split", map[string]any{"weights": map[string]any{"m0": 3, "m1": 1, "m2": 0.5}, "salt": "x"}},
		{"shadow", map[string]any{"model": "m0", "fraction": 0.5}},
		{"exp3", nil},
		{"exp3", map[string]any{"gamma": 0.3, "share": 0, "inherit": 0}},
		{"exp4", nil},
		{"exp4", map[string]any{"eta": 2, "share": 0}},
		{"exp4", map[string]any{"share": 1}},
		{"epsilon-greedy", nil},
		{"epsilon-greedy", map[string]any{"epsilon": 1, "step": 0}},
		{"thompson", nil},
		{"thompson", map[string]any{"decay": 1, "inherit": 1}},
		{"ensemble", nil},
		{"ensemble", map[string]any{"combination": "mean", "loss": "label"}},
		{"ensemble", map[string]any{"weights": map[string]any{"m0": 3, "m1": 1}}},
	}
}

func (v variant) String() string { return fmt.Sprint(v.policy, " ", v.params) }

func models(n int) (all []selection.Model) {
	for i := range n {
		all = append(all, selection.Model{Name: fmt.Sprintf("m%d", i), Version: "1"})
	}
	return all
}

// walk returns a state after n feedbacks of random losses, checking the plan of each.
func walk(t *testing.T, p *selection.Policy, s selection.State, r *rand.Rand, n int,
	visit func(selection.State, selection.Plan)) selection.State {
	t.Helper()
	for range n {
		plan, err := p.Select(s, selection.Request{User: fmt.Sprint(r.IntN(50)), Random: r.Uint64()})
		if err != nil {
			t.Fatal(err)
		}
		visit(s, plan)
		losses := map[selection.Model]float64{}
		var predictions []selection.Prediction
		for i, ask := range plan.Asks {
			predictions = append(predictions, selection.Prediction{Ask: ask})
			if i == 0 || r.IntN(4) > 0 { // the rest are late, and not judged
				losses[ask.Model] = r.Float64()
			}
		}
		if s, err = p.Feedback(s, predictions, selection.ByLosses(losses)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// In every state shares are probabilities, those of exp3 and epsilon-greedy are not below their
// floor, a plan's probability is the model's share, and the first model of a combining plan is the
// heaviest.
func TestProbabilities(t *testing.T) {
	budgettest.OneGoroutine(t)
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		for _, k := range []int{2, 3, 8, 20} {
			if v.policy == "split" && k == 2 {
				continue // another test covers weights for missing models
			}
			floor := 0.
			if name, of := map[string]string{"exp3": "gamma", "epsilon-greedy": "epsilon"}[v.policy],
				p.Params(); name != "" {
				floor = of[name].(float64) / float64(k) * (1 - 1e-12)
			}
			s := fresh(t, p, models(k))
			walk(t, p, s, rand.New(rand.NewPCG(uint64(k), 0)), budgettest.Rounds(300),
				func(s selection.State, plan selection.Plan) {
					shares, err := p.Shares(s)
					if err != nil {
						t.Fatal(err)
					}
					var sum float64
					for _, share := range shares {
						sum += share
						if !(share >= floor && share <= 1+1e-12) {
							t.Fatalf("%s of %d models: shares %v, want each from %g to 1", v, k, shares, floor)
						}
					}
					if math.Abs(sum-1) > 1e-9 {
						t.Fatalf("%s of %d models: shares %v sum to %g", v, k, shares, sum)
					}
					first := plan.Asks[0]
					at := slices.IndexFunc(s.Models, func(a selection.Arm) bool { return a.Model == first.Model })
					switch v.policy {
					case "split", "exp3", "epsilon-greedy", "single":
						if len(plan.Asks) != 1 || first.Probability != shares[at] {
							t.Fatalf("%s asks %+v, with shares %v", v, plan.Asks, shares)
						}
					case "exp4", "ensemble":
						if len(plan.Asks) != k || shares[at] != slices.Max(shares) || first.Probability != 1 {
							t.Fatalf("%s asks %+v, with shares %v", v, plan.Asks, shares)
						}
					}
				})
		}
	}
}

// A plan's probability is the frequency with which the model is chosen: over 20,000 requests,
// within five standard deviations.
func TestProbabilityIsFrequency(t *testing.T) {
	const n = 20000
	r := rand.New(rand.NewPCG(4, 0))
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		s := walk(t, p, fresh(t, p, models(4)), r, 60, func(selection.State, selection.Plan) {})
		shares, err := p.Shares(s)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[selection.Model]float64{}
		for range n {
			plan, err := p.Select(s, selection.Request{Random: r.Uint64()})
			if err != nil {
				t.Fatal(err)
			}
			counts[plan.Asks[0].Model]++
		}
		for i, a := range s.Models {
			want, slack := shares[i], 5*math.Sqrt(shares[i]*(1-shares[i])/n)
			switch v.policy {
			case "exp4", "ensemble":
				continue // asks all models
			case "thompson":
				slack += 5 * math.Sqrt(0.25/1000) // its shares are estimates
			}
			if got := counts[a.Model] / n; math.Abs(got-want) > slack+1e-12 {
				t.Errorf("%s chose %s for %.4f of the requests, want %.4f ± %.4f", v, a.Model, got, want, slack)
			}
		}
	}
}

// A state equals the one read from its JSON, exactly, and both go on in the same way.
func TestStateSurvivesJSON(t *testing.T) {
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		s := walk(t, p, fresh(t, p, models(5)), rand.New(rand.NewPCG(1, 1)), 200,
			func(selection.State, selection.Plan) {})
		s, err := replaced(p, s, models(5)[2], selection.Model{Name: "m2", Version: "2"})
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var read selection.State
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatalf("%s: %v in %s", v, err, text)
		}
		if !reflect.DeepEqual(read, s) {
			t.Errorf("%s: read\n%+v, want\n%+v", v, read, s)
		}
		on := func(s selection.State) selection.State {
			return walk(t, p, s, rand.New(rand.NewPCG(2, 2)), 50, func(selection.State, selection.Plan) {})
		}
		if !reflect.DeepEqual(on(read), on(s)) {
			t.Errorf("%s goes another way after it was read", v)
		}
	}
}

// The order of models does not matter: neither in New nor in the predictions.
func TestOrderOfModelsDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		there, back := models(6), models(6)
		slices.Reverse(back)
		a, b := fresh(t, p, there), fresh(t, p, back)
		for i := range 200 {
			request := selection.Request{Random: r.Uint64()}
			plan, err := p.Select(a, request)
			if err != nil {
				t.Fatal(err)
			}
			if other, _ := p.Select(b, request); !reflect.DeepEqual(plan, other) {
				t.Fatalf("%s: plans %+v and %+v", v, plan, other)
			}
			predictions := says(plan, i)
			turned := slices.Clone(predictions)
			slices.Reverse(turned)
			if x, y := p.Combine(a, predictions, nil),
				p.Combine(b, turned, nil); !reflect.DeepEqual(x.Outputs, y.Outputs) ||
				math.Abs(x.Confidence-y.Confidence) > 1e-12 {
				t.Fatalf("%s: answers %v and %v", v, x, y)
			}
			if a, err = p.Feedback(a, predictions, selection.ByTruth(label(1)...)); err != nil {
				t.Fatal(err)
			}
			if b, err = p.Feedback(b, turned, selection.ByTruth(label(1)...)); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%s: states\n%+v and\n%+v", v, a, b)
			}
		}
	}
}

// No method changes the state that it is given.
func TestStatesAreValues(t *testing.T) {
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		s := walk(t, p, fresh(t, p, models(4)), rand.New(rand.NewPCG(5, 0)), 100,
			func(selection.State, selection.Plan) {})
		before, _ := json.Marshal(s)
		walk(t, p, s, rand.New(rand.NewPCG(6, 0)), 20, func(selection.State, selection.Plan) {})
		m := models(6)
		for what, change := range map[string]func() (selection.State, error){
			"add":     func() (selection.State, error) { return with(p, s, m[4]) },
			"remove":  func() (selection.State, error) { return without(p, s, m[3]) },
			"replace": func() (selection.State, error) { return replaced(p, s, m[1], m[5]) },
			"Migrate": func() (selection.State, error) { return p.Migrate(s, []selection.Model{m[0], m[4], m[5]}) },
		} {
			if _, err := change(); err != nil {
				t.Errorf("%s: %s: %v", v, what, err)
			}
			if after, _ := json.Marshal(s); string(after) != string(before) {
				t.Errorf("%s: %s changed the state that it was given to %s from %s", v, what, after, before)
			}
		}
	}
}
