package selection_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// eight returns a policy, a state of eight models that has learned a little, and the models'
// predictions, which every policy accepts: a label, and scores for a mean.
func eight(t testing.TB, name string, params map[string]any) (*selection.Policy, selection.State, []selection.Model) {
	if name == "single" || name == "shadow" {
		params = map[string]any{"model": "m3"}
	}
	p := parse(t, name, params)
	var models []selection.Model
	for i := range 8 {
		models = append(models, selection.Model{Name: fmt.Sprintf("m%d", i), Version: "1"})
	}
	s := fresh(t, p, models)
	for i := range 100 {
		plan, err := p.Select(s, selection.Request{Random: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		if s, err = p.Feedback(s, says(plan, i), selection.ByTruth(label(1)...)); err != nil {
			t.Fatal(err)
		}
	}
	return p, s, models
}

// says makes the models of a plan predict labels, most of them 1.
func says(plan selection.Plan, i int) (predictions []selection.Prediction) {
	for k, ask := range plan.Asks {
		l := int64(1)
		if (i+k)%5 == 0 {
			l = 2
		}
		predictions = append(predictions, selection.Prediction{Ask: ask, Outputs: label(l)})
	}
	return predictions
}

// scores makes the models of a plan predict ten float32 each.
func scores(plan selection.Plan) (predictions []selection.Prediction) {
	for k, ask := range plan.Asks {
		values := make([]float32, 10)
		for i := range values {
			values[i] = float32(math.Mod(float64(i*k)*0.37, 1))
		}
		t, _ := tensor.FromSlice(tensor.Shape{1, 10}, values)
		predictions = append(predictions, selection.Prediction{Ask: ask, Outputs: []tensor.Tensor{t}})
	}
	return predictions
}

// steps are the steps of a request, each with the result of the one before.
func steps(t testing.TB, name string, params map[string]any) map[string]func() {
	p, s, _ := eight(t, name, params)
	r := selection.Request{User: "someone", Random: 1}
	plan, err := p.Select(s, r)
	if err != nil {
		t.Fatal(err)
	}
	predictions, truth := says(plan, 1), selection.ByTruth(label(1)...)
	if params["combination"] == "mean" {
		predictions = scores(plan)
		truth = selection.ByTruth(predictions[0].Outputs...)
	}
	return map[string]func(){
		"Select": func() {
			r.Random++
			if _, err := p.Select(s, r); err != nil {
				t.Fatal(err)
			}
		},
		"Combine": func() {
			if p.Combine(s, predictions, nil).Outputs == nil {
				t.Fatal("no answer")
			}
		},
		"Feedback": func() {
			if _, err := p.Feedback(s, predictions, truth); err != nil {
				t.Fatal(err)
			}
		},
	}
}

var mean = map[string]any{"combination": "mean"}

func BenchmarkEightModels(b *testing.B) {
	run := func(name, policy string, params map[string]any) {
		for step, f := range steps(b, policy, params) {
			b.Run(step+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					f()
				}
			})
		}
	}
	for _, policy := range selection.Names() {
		run(policy, policy, nil)
	}
	run("exp4-mean", "exp4", mean)
}
