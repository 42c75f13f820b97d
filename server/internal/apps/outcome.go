package apps

import (
	"bytes"
	"encoding/json"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Verdict is a client's later judgement of a request: exactly one of the members is set.
type Verdict struct {
	// Label is the right answer: a value or list, or an object of them by output.
	Label  json.RawMessage             `json:"label"`
	Loss   *float64                    `json:"loss"`   // 0 (the best) to 1
	Reward *float64                    `json:"reward"` // 1 minus the loss
	Losses map[selection.Model]float64 `json:"losses"` // for each model, by "name/version"
}

// ReadVerdict reads the members of a JSON object that belong to a Verdict; it ignores all others.
// See Check.
func ReadVerdict(object []byte) (Verdict, error) {
	var v Verdict
	if len(object) > 0 {
		if err := json.Unmarshal(object, &v); err != nil {
			return v, fault.Invalid("feedback: %w", jsonscan.Words(err))
		}
	}
	return v, nil
}

// Given returns how many members are set.
func (v Verdict) Given() (n int) {
	for _, is := range []bool{v.Label != nil, v.Loss != nil, v.Reward != nil, v.Losses != nil} {
		if is {
			n++
		}
	}
	return n
}

// Check returns an error unless exactly one member is set, or none but truth is given: tensors with
// the right outputs.
func (v Verdict) Check(truth []tensor.Tensor) error {
	n := v.Given()
	if len(truth) > 0 {
		n++
	}
	if n != 1 {
		return fault.Invalid(`feedback: expected one of "label", "loss", "reward", "losses", or the right outputs as tensors; got %d of them`, n)
	}
	return nil
}

// Outcome converts a verdict to what a policy learns from.
func (v Verdict) Outcome(truth []tensor.Tensor) (selection.Outcome, error) {
	switch {
	case v.Loss != nil:
		return selection.ByLoss(*v.Loss), nil
	case v.Reward != nil:
		return selection.ByLoss(1 - *v.Reward), nil
	case v.Losses != nil:
		return selection.ByLosses(v.Losses), nil
	case len(truth) > 0:
		return selection.ByTruth(truth...), nil
	}
	byName := map[string]json.RawMessage{}
	if label := bytes.TrimSpace(v.Label); label[0] != '{' {
		byName[""] = label
	} else if err := json.Unmarshal(label, &byName); err != nil {
		return selection.Outcome{}, fault.Invalid("feedback: label: %w", jsonscan.Words(err))
	}
	var right []tensor.Tensor
	for name, value := range byName {
		t, err := untyped(value) // whatever the model's dtype: values are compared
		if err != nil {
			return selection.Outcome{}, fault.Invalid("feedback: label: %w", err)
		}
		t.Name = name
		right = append(right, t)
	}
	return selection.ByTruth(right...), nil
}
