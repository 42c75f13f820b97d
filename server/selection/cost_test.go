package selection_test

import (
	"testing"

	"github.com/shivad/shivad/server/selection"
)

// The cost of a request is bounded by its allocations: one for the plan; for an answer the voices
// and their weights, and for a mean also its outputs and their bytes; for feedback the new state
// and the losses.
func TestAllocations(t *testing.T) {
	check := func(name, policy string, params map[string]any, budget map[string]float64) {
		for step, f := range steps(t, policy, params) {
			if n := testing.AllocsPerRun(100, f); n > budget[step] {
				t.Errorf("%s of %s makes %.0f allocations for eight models, want at most %.0f", step, name, n,
					budget[step])
			}
		}
	}
	for _, policy := range selection.Names() {
		check(policy, policy, nil, map[string]float64{"Select": 1, "Combine": 2, "Feedback": 3})
	}
	check("exp4 with mean", "exp4", mean, map[string]float64{"Select": 1, "Combine": 4, "Feedback": 3})
}
