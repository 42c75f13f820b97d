package selection_test

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/shivad/shivad/server/selection"
)

// All faults are listed, each with the value, what was expected, and what may have been meant.
func TestParseListsAllFaults(t *testing.T) {
	for _, c := range []struct {
		policy string
		params map[string]any
		want   []string
	}{
		{"exp5", nil, []string{"there is no such policy; there are single, split, shadow, exp3, exp4, epsilon-greedy, thompson, ensemble, ucb1"}},
		{"exp3", map[string]any{"gama": 0.1, "gamma": 2, "share": "x", "step": math.NaN(), "loss": "cubic"}, []string{
			`unknown parameter "gama" (did you mean gamma?); known here: gamma, eta, share, inherit, output, loss, scale, step`,
			`parameter gamma is 2, want a number above 0 and at most 1`,
			`parameter loss is "cubic", want "label", "absolute" or "squared"`,
			`parameter share is "x", want a number from 0 to 1`,
			`parameter step is NaN, want a number from 0 to 1`,
		}},
		{"split", map[string]any{"weights": map[string]any{"a": -1}, "epsilon": 1}, []string{
			`unknown parameter "epsilon"; known here: weights, salt, output, loss, scale, step`,
			`parameter weights is {"a":-1}, want for each model, by "name/version" or "name", a number of at least 0, and one above 0`,
		}},
		{"ensemble", map[string]any{"classes": 2.5, "combination": 7, "weights": map[string]any{"a": 0}, "scale": 0},
			[]string{
				`parameter classes is 2.5, want a whole number of at least 2`,
				`parameter combination is 7, want "vote" or "mean"`,
				`parameter scale is 0, want a number above 0`,
				`parameter weights is {"a":0}, want for each model, by "name/version" or "name", a number of at least 0, and one above 0`,
			}},
	} {
		_, err := selection.Parse(c.policy, c.params)
		var e *selection.Error
		if !errors.As(err, &e) || !slices.Equal(e.Faults, c.want) {
			t.Errorf("%s %v: %v, want faults %q", c.policy, c.params, err, c.want)
		}
	}
}

// Params returns the values in effect, and Parse accepts them, also after a round trip through
// JSON.
func TestParamsAreComplete(t *testing.T) {
	for _, v := range variants() {
		p := parse(t, v.policy, v.params)
		text, err := json.Marshal(p.Params())
		if err != nil {
			t.Fatal(err)
		}
		var params map[string]any
		if err := json.Unmarshal(text, &params); err != nil {
			t.Fatal(err)
		}
		if again := parse(t, v.policy, params); !reflect.DeepEqual(again.Params(), p.Params()) ||
			again.Name() != v.policy {
			t.Errorf("%s has %v, and after %s %v", v, p.Params(), text, again.Params())
		}
	}
	for _, c := range []struct {
		combination, loss any
		want              string
	}{{"mean", nil, "absolute"}, {"mean", "label", "label"}, {"vote", nil, "label"}} {
		params := map[string]any{"combination": c.combination}
		if c.loss != nil {
			params["loss"] = c.loss
		}
		if got := parse(t, "exp4", params).Params()["loss"]; got != c.want {
			t.Errorf("exp4 with %v judges by %v, want %s", params, got, c.want)
		}
	}
	// The caller may change the map without effect on the policy.
	p := parse(t, "split", map[string]any{"weights": map[string]float64{"a": 1}})
	p.Params()["weights"].(map[string]float64)["a"] = 7
	if got := p.Params()["weights"].(map[string]float64)["a"]; got != 1 {
		t.Errorf("the weight is %g, want 1", got)
	}
}
