package selection_test

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestLoss(t *testing.T) {
	i64 := func(v ...int64) []tensor.Tensor { return one(of("y", tensor.Shape{len(v)}, v...)) }
	f64 := func(v ...float64) []tensor.Tensor { return one(of("y", tensor.Shape{len(v)}, v...)) }
	f32 := func(v ...float32) []tensor.Tensor { return one(of("y", tensor.Shape{len(v), 1}, v...)) }
	nan := math.NaN()
	for _, c := range []struct {
		name               string
		params             map[string]any
		predictions, truth []tensor.Tensor
		want               float64
		fault              string
	}{
		{"right", nil, i64(3), i64(3), 0, ""},
		{"wrong", nil, i64(3), i64(4), 1, ""},
		{"a row of four", nil, i64(1, 2, 3, 4), i64(1, 2, 3, 5), 0.25, ""},
		{"rows are right or wrong", nil, one(of("y", tensor.Shape{2, 2}, 1., 2, 3, 4)),
			one(of("y", tensor.Shape{2, 2}, 1., 2, 3, 5)), 0.5, ""},
		{"truth of another dtype", nil, one(of("y", tensor.Shape{1}, int32(7))), i64(7), 0, ""},
		{"truth of another shape", nil, one(of("y", tensor.Shape{2, 1}, int64(1), 2)), i64(1, 3), 0.5, ""},
		{"text", nil, one(texts("cat", "dog")), one(texts("cat", "cow")), 0.5, ""},
		{"longer text", nil, one(texts("a", "bb", "c")), one(texts("ab", "b", "c")), 2. / 3, ""},
		{"no rows", nil, i64(), i64(), 0, ""},
		{"text for a number", nil, i64(1), one(texts("1")), 0, "truth is no int64"},
		{"a number that cannot be", nil, one(of("y", tensor.Shape{1}, int8(1))), i64(300), 0, "300"},
		{"too many", nil, i64(1), i64(1, 2), 0, "1 element, and the truth 2"},
		{"no truth", nil, i64(1), nil, 0, "truth has no outputs"},
		{"no output", map[string]any{"output": "z"}, i64(1), i64(1), 0, `no output "z"`},
		{"absolute", map[string]any{"loss": "absolute"}, f64(0, 0.5), f64(0.25, 0.5), 0.125, ""},
		{"absolute, of whole numbers", map[string]any{"loss": "absolute", "scale": 10}, i64(3), i64(5), 0.2, ""},
		{"absolute, clipped by element", map[string]any{"loss": "absolute"}, f64(0, 100), f64(0.5, 0), 0.75, ""},
		{"squared", map[string]any{"loss": "squared", "scale": 2}, f32(1, 9), f64(2, 0), 0.625, ""},
		{"NaN is as wrong as can be", map[string]any{"loss": "squared"}, f64(nan), f64(2), 1, ""},
		{"a true NaN", map[string]any{"loss": "squared"}, f64(2), f64(nan), 0, "NaN"},
		{"numbers of text", map[string]any{"loss": "absolute"}, one(texts("1")), one(texts("1")), 0, "cast"},
		{"truth by name", map[string]any{"output": "y"}, []tensor.Tensor{of("x", tensor.Shape{1}, 5.), i64(2)[0]},
			[]tensor.Tensor{of("x", tensor.Shape{1}, 6.), i64(2)[0]}, 0, ""},
		{"no truth of that name", nil, i64(1), []tensor.Tensor{of("x", nil, 1.), of("z", nil, 1.)}, 0, `no output "y"`},
	} {
		got, err := parse(t, "ensemble", c.params).Loss(c.predictions, c.truth)
		if c.fault == "" && (err != nil || !(math.Abs(got-c.want) <= 1e-12)) {
			t.Errorf("%s: loss %g (%v), want %g", c.name, got, err, c.want)
		} else if c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: loss %g (%v), want an error with %q", c.name, got, err, c.fault)
		}
	}
}

// The state after one feedback agrees with the formulas of the doc comments.
func TestFormulas(t *testing.T) {
	m := models(3)
	all := selection.ByLosses(map[selection.Model]float64{m[0]: 0.25, m[1]: 1, m[2]: 0.5})
	step := func(policy string, params map[string]any, o selection.Outcome, asks ...selection.Ask) []selection.Arm {
		t.Helper()
		p := parse(t, policy, params)
		var predictions []selection.Prediction
		for _, ask := range asks {
			predictions = append(predictions, selection.Prediction{Ask: ask})
		}
		s, err := p.Feedback(fresh(t, p, m), predictions, o)
		if err != nil {
			t.Fatal(err)
		}
		if s.Rounds != 1 {
			t.Errorf("%s: %d rounds", policy, s.Rounds)
		}
		return s.Models
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if !(math.Abs(got-want) <= 1e-12) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
	}
	everybody := []selection.Ask{{Model: m[0], Probability: 1}, {Model: m[1], Probability: 1},
		{Model: m[2], Probability: 1}}

	// gamma 0.3, K 3: w_0 = exp(-0.4 * 0.25/0.2), then 1 % of each is redistributed.
	arms := step("exp3", map[string]any{"gamma": 0.3, "eta": 0.4, "share": 0.01}, all,
		selection.Ask{Model: m[0], Probability: 0.2})
	part := 0.01 / 3 * (2 + math.Exp(-0.5))
	near("weight of exp3", math.Exp(arms[0].LogWeight), (0.99*math.Exp(-0.5)+part)/(0.99+part))
	near("its mean loss", arms[0].Loss, 0.25)
	near("and that of another", arms[1].Loss, 0)
	// A probability that is too small counts as gamma/K.
	arms = step("exp3", map[string]any{"gamma": 0.3, "eta": 0.4, "share": 0}, all,
		selection.Ask{Model: m[0], Probability: 1e-300})
	near("weight of exp3 at its floor", arms[0].LogWeight, -1)

	w := []float64{math.Exp(-0.5 * 0.25), math.Exp(-0.5), math.Exp(-0.5 * 0.5)}
	sum := w[0] + w[1] + w[2]
	for i := range w {
		w[i] = 0.9*w[i] + 0.1/3*sum
	}
	arms = step("exp4", map[string]any{"eta": 0.5, "share": 0.1}, all, everybody...)
	near("weight of exp4", math.Exp(arms[1].LogWeight), w[1]/w[0])
	near("another", math.Exp(arms[2].LogWeight), w[2]/w[0])
	// Model 2 is late: the other two keep two thirds of the weight between them.
	arms = step("exp4", map[string]any{"eta": 0.5, "share": 0},
		selection.ByLosses(map[selection.Model]float64{m[0]: 0, m[1]: 1}), everybody...)
	near("weight of who is late",
		1/(math.Exp(arms[0].LogWeight)+math.Exp(arms[1].LogWeight)+
			math.Exp(arms[2].LogWeight))*math.Exp(arms[2].LogWeight), 1./3)
	near("of the others", arms[1].LogWeight-arms[0].LogWeight, -0.5)

	arms = step("thompson", nil, all, selection.Ask{Model: m[0]})
	near("good", arms[0].Good, 0.75)
	near("bad", arms[0].Bad, 0.25)
	near("good of another", arms[1].Good, 0)

	p := parse(t, "ensemble", map[string]any{"classes": 3})
	s := fresh(t, p, m)
	s, err := p.Feedback(s, []selection.Prediction{{Ask: everybody[0]}}, all)
	if err != nil {
		t.Fatal(err)
	}
	shares, _ := p.Shares(s)
	say := func(loss float64) float64 {
		q := (loss + 0.5) / 2
		return max(0.01, math.Log((1-q)/q)+math.Log(2))
	}
	near("share of the ensemble", shares[0], say(0.25)/(say(0.25)+say(1)+say(0.5)))
	// 30 losses at a step of 0.1 count as ten.
	p = parse(t, "ensemble", map[string]any{"combination": "mean", "step": 0.1})
	many, _ := p.Shares(selection.State{Policy: "ensemble",
		Models: []selection.Arm{{Model: m[0], Loss: 0.2, Count: 30}, {Model: m[1]}}})
	near("share that rests on many losses", many[0], (1/(2.5/11))/(1/(2.5/11)+1/0.5))
	p = parse(t, "ensemble", map[string]any{"combination": "mean"})
	shares, _ = p.Shares(selection.State{Policy: "ensemble", Models: s.Models})
	near("share in a mean", shares[0], (1/0.375)/(1/0.375+1/0.75+1/0.5))
}

// Old losses fade in a mean with a step, and not in a mean without one. thompson discounts the
// evidence of all models at each feedback.
func TestForgetting(t *testing.T) {
	m := models(2)
	for params, want := range map[float64]float64{0: 0.5, 0.1: 1 - math.Pow(0.9, 50)} {
		p := parse(t, "epsilon-greedy", map[string]any{"step": params})
		s := fresh(t, p, m)
		for i := range 100 {
			var err error
			if s, err = p.Feedback(s, []selection.Prediction{{Ask: selection.Ask{Model: m[0], Probability: 1}}},
				selection.ByLoss(float64(i/50))); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.Models[0].Loss; math.Abs(got-want) > 1e-9 {
			t.Errorf("mean loss %g with step %g, want %g", got, params, want)
		}
	}
	p := parse(t, "thompson", map[string]any{"decay": 0.5})
	s := fresh(t, p, m)
	for _, model := range []selection.Model{m[0], m[1], m[1]} {
		var err error
		if s, err = p.Feedback(s, []selection.Prediction{{Ask: selection.Ask{Model: model}}},
			selection.ByLoss(0)); err != nil {
			t.Fatal(err)
		}
	}
	if s.Models[0].Good != 0.25 || s.Models[1].Good != 1.5 {
		t.Errorf("evidence %g and %g, want 0.25 and 1.5", s.Models[0].Good, s.Models[1].Good)
	}
}

// Feedback that cannot be learned from is an error, and the old state stays in effect.
func TestFeedbackRefused(t *testing.T) {
	m := models(3)
	ask := func(i int) selection.Prediction {
		return selection.Prediction{Ask: selection.Ask{Model: m[i], Probability: 0.5}, Outputs: label(1)}
	}
	unknown := ask(0)
	unknown.Probability = 0
	odd := ask(0)
	odd.Probability = math.NaN()
	for _, c := range []struct {
		name, policy string
		predictions  []selection.Prediction
		outcome      selection.Outcome
		fault        string
	}{
		{"NaN", "exp3", []selection.Prediction{ask(0)}, selection.ByLoss(math.NaN()), "loss NaN, want 0 to 1"},
		{"negative", "thompson", []selection.Prediction{ask(0)}, selection.ByLoss(-0.1), "loss -0.1"},
		{"above 1", "epsilon-greedy", []selection.Prediction{ask(0)}, selection.ByLoss(1.1), "loss 1.1"},
		{"one of several", "exp4", []selection.Prediction{ask(0), ask(1)},
			selection.ByLosses(map[selection.Model]float64{m[0]: 0, m[1]: math.Inf(1)}), "m1/1 has loss +Inf"},
		{"none asked", "exp4", nil, selection.ByLoss(1), "no model was asked"},
		{"no outcome", "exp4", []selection.Prediction{ask(0)}, selection.Outcome{}, "without truth"},
		{"no probability", "exp3", []selection.Prediction{unknown}, selection.ByLoss(1), "probability 0"},
		{"odd probability", "exp4", []selection.Prediction{odd}, selection.ByLoss(1), "probability NaN"},
		{"loss of a combined answer", "exp4", []selection.Prediction{ask(0), ask(1)}, selection.ByLoss(1), "2 models"},
		{"two chosen", "exp3", []selection.Prediction{ask(0), ask(1)}, selection.ByTruth(label(1)...), "2 models"},
		{"truth that does not fit", "exp4", []selection.Prediction{ask(0)}, selection.ByTruth(texts("x")), "model m0/1: the truth is no int64"},
	} {
		p := parse(t, c.policy, nil)
		s := fresh(t, p, m)
		if got, err := p.Feedback(s, c.predictions, c.outcome); err == nil || !strings.Contains(err.Error(), c.fault) ||
			got.Models != nil {
			t.Errorf("%s: %+v (%v), want an error with %q", c.name, got, err, c.fault)
		}
	}
	if _, err := parse(t, "exp3", nil).Feedback(fresh(t, parse(t, "exp4", nil), m), []selection.Prediction{ask(0)},
		selection.ByLoss(1)); err == nil || !strings.Contains(err.Error(), `state of policy "exp4"`) {
		t.Errorf("another policy's state: %v", err)
	}
}

// A bandit learns from the model that it asked, shadow from all models, and no policy from a model
// that was removed or has not answered.
func TestWhoLearns(t *testing.T) {
	m := models(3)
	gone := selection.Model{Name: "gone", Version: "1"}
	predict := func(model selection.Model, shadow bool, outputs []tensor.Tensor) selection.Prediction {
		return selection.Prediction{Ask: selection.Ask{Model: model, Shadow: shadow, Probability: 0.5},
			Outputs: outputs}
	}
	losses := map[selection.Model]float64{m[0]: 0.5, m[1]: 0.5, m[2]: 0.5, gone: 0.5}
	for _, c := range []struct {
		name, policy string
		predictions  []selection.Prediction
		outcome      selection.Outcome
		counts       []float64
	}{
		{"bandit", "exp3", []selection.Prediction{predict(m[1], false, nil)}, selection.ByLosses(losses),
			[]float64{0, 1, 0}},
		{"bandit by truth", "thompson", []selection.Prediction{predict(m[1], false, label(1))},
			selection.ByTruth(label(1)...), []float64{0, 1, 0}},
		{"bandit, with a shadow of another policy", "exp3",
			[]selection.Prediction{predict(m[0], true, label(1)), predict(m[1], false, label(1))},
			selection.ByTruth(label(1)...), []float64{0, 1, 0}},
		{"bandit, late", "thompson", []selection.Prediction{predict(m[1], false, nil)}, selection.ByTruth(label(1)...),
			[]float64{0, 0, 0}},
		{"bandit, gone", "split", []selection.Prediction{predict(gone, false, label(1))}, selection.ByLoss(1),
			[]float64{0, 0, 0}},
		{"all", "exp4", []selection.Prediction{predict(m[1], false, nil)}, selection.ByLosses(losses),
			[]float64{1, 1, 1}},
		{"all who spoke", "exp4",
			[]selection.Prediction{predict(m[0], false, label(1)), predict(m[1], false, nil),
				predict(m[2], false, label(2)), predict(gone, false, label(1))}, selection.ByTruth(label(1)...),
			[]float64{1, 0, 1}},
		{"all who can be compared", "exp4",
			[]selection.Prediction{predict(m[0], false, one(texts("odd"))), predict(m[1], false, label(1))},
			selection.ByTruth(label(1)...), []float64{0, 1, 0}},
		{"shadows by truth", "shadow",
			[]selection.Prediction{predict(m[0], false, label(1)), predict(m[1], true, label(2))},
			selection.ByTruth(label(1)...), []float64{1, 1, 0}},
		{"shadows by loss", "shadow",
			[]selection.Prediction{predict(m[0], false, label(1)), predict(m[1], true, label(2))}, selection.ByLoss(1),
			[]float64{1, 0, 0}},
		{"shadow first", "shadow",
			[]selection.Prediction{predict(m[1], true, label(2)), predict(m[0], false, label(1))}, selection.ByLoss(1),
			[]float64{1, 0, 0}},
	} {
		params := map[string]any{}
		if c.policy == "shadow" {
			params["model"] = "m0"
		}
		p := parse(t, c.policy, params)
		s, err := p.Feedback(fresh(t, p, m), c.predictions, c.outcome)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var counts []float64
		learned := uint64(0)
		for _, a := range s.Models {
			counts = append(counts, a.Count)
			learned = max(learned, uint64(a.Count))
		}
		if !reflect.DeepEqual(counts, c.counts) || s.Rounds != learned {
			t.Errorf("%s: %v losses learned in %d rounds, want %v", c.name, counts, s.Rounds, c.counts)
		}
	}
}
