package selection_test

import (
	"strings"
	"testing"

	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// A policy reports what it cannot take before any model is asked. Before, a mean over texts was
// accepted, and silently became a vote.
func TestAccepts(t *testing.T) {
	text := tensor.Spec{Name: "word", DType: tensor.Bytes, Shape: tensor.Shape{-1}}
	whole := tensor.Spec{Name: "label", DType: tensor.Int64, Shape: tensor.Shape{-1}}
	score := tensor.Spec{Name: "score", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}}
	for _, c := range []struct {
		policy  string
		params  map[string]any
		outputs []tensor.Spec
		fault   string
	}{
		{"exp4", nil, []tensor.Spec{text}, ""},
		{"exp4", mean, []tensor.Spec{text}, `combination is "mean", and the model has no output of a float dtype to take it of: it has word (bytes)`},
		{"exp4", mean, []tensor.Spec{whole}, "label (int64)"},
		{"ensemble", mean, []tensor.Spec{score}, ""},
		{"exp4", map[string]any{"combination": "mean", "output": "label"}, []tensor.Spec{whole, score}, ""},
		{"exp4", map[string]any{"combination": "mean", "output": "word"}, []tensor.Spec{score, text}, `output "word" of the model holds texts`},
		{"exp4", map[string]any{"output": "label"}, []tensor.Spec{score}, `output is "label", which the model does not have: it has score (float32)`},
		{"exp3", map[string]any{"loss": "squared"}, []tensor.Spec{text}, `loss "squared" is a difference of numbers`},
		{"exp3", nil, []tensor.Spec{text}, ""},
		{"single", map[string]any{"output": "label"}, []tensor.Spec{score}, ""},
	} {
		err := parse(t, c.policy, c.params).Accepts(nil, c.outputs)
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s %v over %v: %v, want %q", c.policy, c.params, c.outputs, err, c.fault)
		}
	}
}

// A registered policy is like any other: it is listed, with its own and the common parameters, and
// its name is taken.
func TestRegister(t *testing.T) {
	names := selection.Names()
	if names[len(names)-1] != "ucb1" || names[0] != "single" {
		t.Errorf("names are %q", names)
	}
	list := selection.Parameters("ucb1")
	if len(list) != 5 || list[0].Name != "width" || list[0].Default != 1.4 || list[4].Name != "step" {
		t.Errorf("parameters are %+v", list)
	}
	p := parse(t, "ucb1", map[string]any{"step": 0.5})
	if params := p.Params(); params["width"] != 1.4 || params["step"] != 0.5 {
		t.Errorf("parameters in force are %v", params)
	}
	if _, err := selection.Parse("ucb1", map[string]any{"wdth": 1.}); err == nil || !strings.Contains(err.Error(), "did you mean width?") {
		t.Errorf("a misspelt parameter: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("a name was taken twice")
		}
	}()
	selection.Register(selection.Kind{Name: "exp3",
		New: func(map[string]any) (selection.Algorithm, error) { return nil, nil }})
}
