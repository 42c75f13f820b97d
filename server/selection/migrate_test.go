package selection_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/selection"
)

func learned(t *testing.T, p *selection.Policy, n int) selection.State {
	t.Helper()
	return walk(t, p, fresh(t, p, models(n)), rand.New(rand.NewPCG(9, uint64(n))), 200,
		func(selection.State, selection.Plan) {})
}

// arm returns the Arm of a model in a state.
func arm(t *testing.T, s selection.State, m selection.Model) selection.Arm {
	t.Helper()
	for _, a := range s.Models {
		if a.Model == m {
			return a
		}
	}
	t.Fatalf("%s is none of %+v", m, s.Models)
	return selection.Arm{}
}

// with migrates to the models of s plus one.
func with(p *selection.Policy, s selection.State, m selection.Model) (selection.State, error) {
	return p.Migrate(s, append(modelsOf(s), m))
}

// without migrates to the models of s except one.
func without(p *selection.Policy, s selection.State, m selection.Model) (selection.State, error) {
	return p.Migrate(s, slices.DeleteFunc(modelsOf(s), func(o selection.Model) bool { return o == m }))
}

// replaced migrates to the models of s, with next in the place of old.
func replaced(p *selection.Policy, s selection.State, old, next selection.Model) (selection.State, error) {
	models := modelsOf(s)
	models[slices.Index(models, old)] = next
	return p.Migrate(s, models)
}

func modelsOf(s selection.State) (models []selection.Model) {
	for _, a := range s.Models {
		models = append(models, a.Model)
	}
	return models
}

// Adding a model and removing it restores the state, up to rounding.
func TestAddThenRemove(t *testing.T) {
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		s := learned(t, p, 4)
		for _, gone := range models(4)[1:] {
			less, err := without(p, s, gone)
			if err != nil {
				t.Fatalf("%s: %v", v, err)
			}
			heaviest := math.Inf(-1)
			for _, a := range less.Models {
				heaviest = max(heaviest, a.LogWeight)
				if got, want := a.LogWeight-less.Models[0].LogWeight,
					arm(t, s, a.Model).LogWeight-arm(t, s, less.Models[0].Model).LogWeight; math.Abs(got-want) > 1e-9 {
					t.Errorf("%s without %s: %s weighs e^%g of the first, want e^%g", v, gone, a.Model, got, want)
				}
			}
			if heaviest != 0 {
				t.Errorf("%s without %s: the heaviest weighs e^%g, want 1", v, gone, heaviest)
			}
		}
		for _, m := range []selection.Model{{Name: "a", Version: "1"}, {Name: "m2", Version: "7"}, {Name: "z", Version: "1"}} {
			more, err := with(p, s, m)
			if err != nil {
				t.Fatalf("%s: %v", v, err)
			}
			if len(more.Models) != 5 || arm(t, more, m).Model != m || !slices.IsSortedFunc(more.Models, byName) {
				t.Errorf("%s with %s has %+v", v, m, more.Models)
			}
			back, err := without(p, more, m)
			if err != nil {
				t.Fatalf("%s: %v", v, err)
			}
			for i, a := range back.Models {
				a.LogWeight = math.Round(a.LogWeight*1e9) / 1e9
				b := s.Models[i]
				b.LogWeight = math.Round(b.LogWeight*1e9) / 1e9
				if a != b {
					t.Errorf("%s without %s again has %+v, want %+v", v, m, a, b)
				}
			}
		}
	}
}

func byName(a, b selection.Arm) int { return strings.Compare(a.Model.String(), b.Model.String()) }

// A new model and a new version start with the numbers in the table of the package comment.
func TestWhatNewcomersStartWith(t *testing.T) {
	m := models(4)
	stranger, next := selection.Model{Name: "new", Version: "1"}, selection.Model{Name: "m2", Version: "2"}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-9) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	for _, policy := range []string{"exp3", "exp4"} {
		for _, h := range []float64{0, 0.25, 1} {
			p := parse(t, policy, map[string]any{"inherit": h})
			s := learned(t, p, 4)
			weight := func(s selection.State, model selection.Model) float64 {
				return math.Exp(arm(t, s, model).LogWeight)
			}
			joined, err := with(p, s, stranger)
			if err != nil {
				t.Fatal(err)
			}
			mean := (weight(s, m[0]) + weight(s, m[1]) + weight(s, m[2]) + weight(s, m[3])) / 4
			near(policy+": weight of a new model", weight(joined, stranger)/weight(joined, m[0]), mean/weight(s, m[0]))

			followed, err := replaced(p, s, m[2], next)
			if err != nil {
				t.Fatal(err)
			}
			mean = (weight(s, m[0]) + weight(s, m[1]) + weight(s, m[3])) / 3
			want := math.Pow(weight(s, m[2]), h) * math.Pow(mean, 1-h)
			near(policy+": weight of a new version", weight(followed, next)/weight(followed, m[0]),
				want/weight(s, m[0]))
			near(policy+": of the others", weight(followed, m[1])/weight(followed, m[0]),
				weight(s, m[1])/weight(s, m[0]))
			near(policy+": its losses", arm(t, followed, next).Count, h*arm(t, s, m[2]).Count)
		}
	}

	p := parse(t, "thompson", map[string]any{"inherit": 0.25})
	s := learned(t, p, 4)
	joined, _ := with(p, s, stranger)
	followed, _ := replaced(p, s, m[2], next)
	near("good of a new model", arm(t, joined, stranger).Good+arm(t, joined, stranger).Bad, 0)
	near("good of a new version", arm(t, followed, next).Good, 0.25*arm(t, s, m[2]).Good)
	near("bad of a new version", arm(t, followed, next).Bad, 0.25*arm(t, s, m[2]).Bad)

	for _, policy := range []string{"epsilon-greedy", "ensemble"} {
		p := parse(t, policy, map[string]any{"inherit": 0.25})
		s := learned(t, p, 4)
		joined, _ := with(p, s, stranger)
		followed, _ := replaced(p, s, m[2], next)
		near(policy+": loss of a new model", arm(t, joined, stranger).Loss,
			(arm(t, s, m[0]).Loss+arm(t, s, m[1]).Loss+arm(t, s, m[2]).Loss+arm(t, s, m[3]).Loss)/4)
		near(policy+": and its count", arm(t, joined, stranger).Count, 1)
		near(policy+": loss of a new version", arm(t, followed, next).Loss, arm(t, s, m[2]).Loss)
		near(policy+": and its count", arm(t, followed, next).Count, 0.25*arm(t, s, m[2]).Count)
		unlearned, _ := with(p, fresh(t, p, m), stranger)
		near(policy+": count of a new model among those without a loss", arm(t, unlearned, stranger).Count, 0)
	}
	for _, policy := range []string{"split", "shadow"} {
		p := parse(t, policy, map[string]any{map[string]string{"split": "salt", "shadow": "model"}[policy]: "m0"})
		followed, _ := replaced(p, learned(t, p, 4), m[2], next)
		if a := arm(t, followed, next); a.Count != 0 || a.Loss != 0 {
			t.Errorf("%s: a new version starts with %+v", policy, a)
		}
	}
}

// Migrate adapts any state to the current models, pairing new versions with removed ones.
func TestMigrate(t *testing.T) {
	v := func(name, version string) selection.Model { return selection.Model{Name: name, Version: version} }
	for _, policy := range []string{"exp3", "exp4", "epsilon-greedy", "thompson", "ensemble", "split"} {
		p := parse(t, policy, map[string]any{})
		s := learned(t, p, 3) // m0/1, m1/1, m2/1
		now := []selection.Model{v("m3", "1"), v("m1", "2"), v("m2", "1"), v("m2", "2")}
		got, err := p.Migrate(s, now)
		if err != nil {
			t.Fatal(err)
		}
		want := s
		for _, f := range []func(selection.State) (selection.State, error){
			func(s selection.State) (selection.State, error) { return without(p, s, v("m0", "1")) },
			func(s selection.State) (selection.State, error) {
				return replaced(p, s, v("m1", "1"), v("m1", "2"))
			},
			func(s selection.State) (selection.State, error) { return with(p, s, v("m2", "2")) },
			func(s selection.State) (selection.State, error) { return with(p, s, v("m3", "1")) },
		} {
			if want, err = f(want); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: migrated to\n%+v, want\n%+v", policy, got, want)
		}
		if again, err := p.Migrate(got, now); err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%s: migrated again to %+v (%v)", policy, again, err)
		}
		single := learned(t, parse(t, "single", map[string]any{"model": "m0"}), 2)
		from, err := p.Migrate(single, now)
		if want := fresh(t, p, now); err != nil || !reflect.DeepEqual(from.Models, want.Models) ||
			!reflect.DeepEqual(from.Others, []selection.State{single}) {
			t.Errorf("%s: migrated from another policy to %+v (%v)", policy, from, err)
		}
		if all, err := p.Migrate(s, []selection.Model{v("x", "1")}); err != nil || len(all.Models) != 1 ||
			all.Models[0].Model != v("x", "1") {
			t.Errorf("%s: with all models replaced there is %+v (%v)", policy, all, err)
		}
	}
	// single must not have two models unless a parameter names the one that answers; here it has
	// two only during Migrate.
	p := parse(t, "single", nil)
	s := fresh(t, p, models(1))
	if got, err := p.Migrate(s, []selection.Model{v("x", "1")}); err != nil || got.Models[0].Model != v("x", "1") {
		t.Errorf("single: migrated to %+v (%v)", got, err)
	}
}

// A version knows its origin, so that parameters that name its predecessor apply to it, until the
// predecessor returns.
func TestOrigin(t *testing.T) {
	p := parse(t, "single", map[string]any{"model": "m0/1"})
	s := fresh(t, p, models(2))
	v := func(version string) selection.Model { return selection.Model{Name: "m0", Version: version} }
	answers := func(s selection.State) selection.Model {
		plan, err := p.Select(s, selection.Request{})
		if err != nil {
			t.Fatal(err)
		}
		return plan.Asks[0].Model
	}
	var err error
	for _, next := range []string{"2", "3"} {
		if s, err = replaced(p, s, answers(s), v(next)); err != nil {
			t.Fatal(err)
		}
		if got := answers(s); got != v(next) || arm(t, s, got).Origin != v("1") {
			t.Errorf("after the update to %s %s answers, of origin %s", next, got, arm(t, s, got).Origin)
		}
	}
	back, err := replaced(p, s, v("3"), v("1"))
	if err != nil || answers(back) != v("1") || arm(t, back, v("1")).Origin != (selection.Model{}) {
		t.Errorf("back at version 1: %+v (%v)", back, err)
	}
	both, err := with(p, s, v("1"))
	if err != nil || answers(both) != v("1") || arm(t, both, v("3")).Origin != (selection.Model{}) {
		t.Errorf("with version 1 beside version 3: %+v (%v)", both, err)
	}
	both, err = replaced(p, s, selection.Model{Name: "m1", Version: "1"}, v("1"))
	if err != nil || answers(both) != v("1") || arm(t, both, v("3")).Origin != (selection.Model{}) {
		t.Errorf("with version 1 in the place of m1: %+v (%v)", both, err)
	}

	// A weight is looked up by the model, else its origin, else its name.
	for _, c := range []struct {
		weights map[string]any
		want    float64
	}{
		{map[string]any{"m0/3": 1, "m0/1": 2, "m0": 3, "m1": 4}, 0.2},
		{map[string]any{"m0/1": 2, "m0": 3, "m1": 4}, 1. / 3},
		{map[string]any{"m0": 3, "m0/2": 9, "m1": 3}, 0.5},
	} {
		p := parse(t, "split", map[string]any{"weights": c.weights})
		for range 20 { // maps are iterated in any order
			if shares, err := p.Shares(selection.State{Policy: "split", Models: s.Models}); err != nil ||
				math.Abs(shares[0]-c.want) > 1e-12 {
				t.Errorf("with weights %v shares are %v (%v), want %g first", c.weights, shares, err, c.want)
				break
			}
		}
	}
}

func TestMigrationRefused(t *testing.T) {
	m := models(3)
	p := parse(t, "exp4", nil)
	s := fresh(t, p, m)
	other := fresh(t, parse(t, "exp3", nil), m)
	many := make([]selection.Model, selection.MaxModels+1)
	for i := range many {
		many[i] = selection.Model{Name: fmt.Sprintf("m%03d", i), Version: "1"}
	}
	pick := func(name string, params map[string]any, models ...selection.Model) func() (selection.State, error) {
		return func() (selection.State, error) { return parse(t, name, params).New(models) }
	}
	for _, c := range []struct {
		name  string
		call  func() (selection.State, error)
		fault string
	}{
		{"no models", pick("exp4", nil), "0 models, want 1 to 256"},
		{"too many", pick("exp4", nil, many...), "257 models"},
		{"twice the same", pick("exp4", nil, m[0], m[0]), "m0/1 is there twice"},
		{"no version", pick("exp4", nil, selection.Model{Name: "m"}), `model "m/" has a name or a version that is empty`},
		{"a slash", pick("exp4", nil, selection.Model{Name: "m/n", Version: "1"}), `"m/n/1"`},
		{"which one", pick("single", nil, m...), "parameter model must say which of 3 models answers"},
		{"which version",
			pick("shadow", map[string]any{"model": "m"}, selection.Model{Name: "m", Version: "1"},
				selection.Model{Name: "m", Version: "2"}), `parameter model is "m", which may be m/1 and m/2`},
		{"none of that name", pick("shadow", map[string]any{"model": "x"}, m...), `parameter model is "x", which is none of the models`},
		{"no weight", pick("split", map[string]any{"weights": map[string]any{"x": 1}}, m...), "none above 0"},
		{"update to nothing", func() (selection.State, error) { return replaced(p, s, m[1], selection.Model{}) }, `model "/"`},
		{"migrate to nothing", func() (selection.State, error) { return p.Migrate(s, nil) }, "0 models"},
		{"another policy's state", func() (selection.State, error) {
			_, err := p.Select(other, selection.Request{})
			return selection.State{}, err
		}, `state of policy "exp3"`},
		{"no state", func() (selection.State, error) {
			_, err := p.Shares(selection.State{Policy: "exp4"})
			return selection.State{}, err
		}, "the state has no models"},
	} {
		s, err := c.call()
		var e *selection.Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.fault) || s.Models != nil {
			t.Errorf("%s: %+v (%v), want an error with %q", c.name, s, err, c.fault)
		}
	}
}

// Two servers, of which one sees version 1 of a model and the other version 2, update one state in
// turns. What was learned about either version stays, and a version inherits once.
func TestTurnsOfTwoVersions(t *testing.T) {
	v := func(name, version string) selection.Model { return selection.Model{Name: name, Version: version} }
	for _, policy := range []string{"exp3", "exp4", "epsilon-greedy", "thompson", "ensemble"} {
		p := parse(t, policy, nil)
		bad, good := v("bad", "1"), v("good", "1")
		teach := func(s selection.State, models ...selection.Model) selection.State {
			t.Helper()
			s, err := p.Migrate(s, models)
			if err != nil {
				t.Fatal(err)
			}
			losses := map[selection.Model]float64{}
			for _, m := range models {
				if losses[m] = 0; m.Name == "bad" {
					losses[m] = 1
				}
			}
			predictions := []selection.Prediction{{Ask: selection.Ask{Model: models[0], Probability: 0.5}}}
			if s, err = p.Feedback(s, predictions, selection.ByLosses(losses)); err != nil {
				t.Fatal(err)
			}
			return s
		}
		s := fresh(t, p, []selection.Model{bad, good})
		for range 60 {
			s = teach(s, bad, good)
		}
		before := arm(t, s, bad)
		beside := before.LogWeight - arm(t, s, good).LogWeight
		for range 12 {
			s = teach(teach(s, v("bad", "2"), good), bad, good)
		}
		after := arm(t, s, bad)
		if after.Count < before.Count || after.Loss < before.Loss || after.Bad < 0.9*before.Bad ||
			after.LogWeight-arm(t, s, good).LogWeight > 0.9*beside {
			t.Errorf("%s: after twelve turns version 1 has %+v, and before %+v", policy, after, before)
		}
		if len(s.Aside) != 1 || s.Aside[0].Model != v("bad", "2") || s.Aside[0].Count < 12 {
			t.Errorf("%s: version 2 is kept as %+v", policy, s.Aside)
		}
	}
}

// A model that is removed and added again has its old numbers relative to the other models, even if
// these have learned meanwhile; a state whose policy was replaced for a while also has its old
// numbers.
func TestWhatComesBack(t *testing.T) {
	m := models(3)
	p := parse(t, "exp4", nil)
	s := learned(t, p, 3)
	less, err := p.Migrate(s, m[:2])
	if err != nil {
		t.Fatal(err)
	}
	if back, err := p.Migrate(less, m); err != nil || !reflect.DeepEqual(back, s) {
		t.Errorf("without %s and with it again the state is\n%+v, want\n%+v (%v)", m[2], back, s, err)
	}
	share := func(s selection.State) float64 {
		shares, err := p.Shares(s)
		if err != nil {
			t.Fatal(err)
		}
		return shares[2]
	}
	want := share(s)
	less = walk(t, p, less, rand.New(rand.NewPCG(1, 2)), 500, func(selection.State, selection.Plan) {})
	back, err := p.Migrate(less, m)
	if got := share(back); err != nil || math.Abs(got-want) > 0.01 {
		t.Errorf("after 500 feedbacks without it, %s has share %g, and had %g (%v)", m[2], got, want, err)
	}

	other := parse(t, "thompson", nil)
	changed, err := other.Migrate(s, m)
	if err != nil || changed.Rounds != 0 {
		t.Fatalf("under another policy: %+v (%v)", changed, err)
	}
	changed = walk(t, other, changed, rand.New(rand.NewPCG(1, 3)), 20, func(selection.State, selection.Plan) {})
	text, err := json.Marshal(changed)
	if err != nil {
		t.Fatal(err)
	}
	var read selection.State
	if err := json.Unmarshal(text, &read); err != nil || !reflect.DeepEqual(read, changed) {
		t.Fatalf("%s reads as %+v (%v)", text, read, err)
	}
	again, err := p.Migrate(read, m)
	if err != nil || len(again.Others) != 1 || again.Others[0].Rounds != 20 {
		t.Fatalf("under the first policy again: %+v (%v)", again, err)
	}
	if again.Others = nil; !reflect.DeepEqual(again, s) {
		t.Errorf("under the first policy again the state is\n%+v, want\n%+v", again, s)
	}
}

// The number of remembered models is bounded: the last three versions of each name, and 64 in all.
func TestAsideIsBounded(t *testing.T) {
	p := parse(t, "exp4", nil)
	s := fresh(t, p, models(2))
	for version := range 10 {
		var err error
		if s, err = p.Migrate(s,
			[]selection.Model{{Name: "m0", Version: fmt.Sprint(version + 2)}, models(2)[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Aside) != 3 || s.Aside[0].Model.Version != "8" || s.Aside[2].Model.Version != "10" {
		t.Errorf("of ten versions there are %+v", s.Aside)
	}
	s = fresh(t, p, models(200))
	s, err := p.Migrate(s, models(1))
	if err != nil || len(s.Aside) != 64 {
		t.Errorf("of 199 models that left %d are kept (%v)", len(s.Aside), err)
	}
}
