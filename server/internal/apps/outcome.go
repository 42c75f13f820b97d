package apps

import (
	"bytes"
	"encoding/json"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// verdict is a judgement, and the losses in it by model.
type verdict struct {
	gate.Verdict
	losses map[selection.Model]float64
}

// verdictOf returns a judgement: the one given or, without it, the members of a JSON object that
// belong to one. See check.
func verdictOf(given *gate.Verdict, object []byte) (v verdict, err error) {
	switch {
	case given != nil:
		v.Verdict = *given
	case len(object) > 0:
		if err := json.Unmarshal(object, &v.Verdict); err != nil {
			return v, fault.Invalid("feedback: %w", jsonscan.Words(err))
		}
	}
	if v.Losses == nil {
		return v, nil
	}
	v.losses = make(map[selection.Model]float64, len(v.Losses))
	for name, loss := range v.Losses {
		var m selection.Model
		if err := m.UnmarshalText([]byte(name)); err != nil {
			return v, fault.Invalid("feedback: %w", err)
		}
		v.losses[m] = loss
	}
	return v, nil
}

// given returns how many members are set.
func (v verdict) given() (n int) {
	for _, is := range []bool{v.Label != nil, v.Loss != nil, v.Reward != nil, v.Losses != nil} {
		if is {
			n++
		}
	}
	return n
}

// check returns an error unless exactly one member is set, or none but truth is given: tensors with
// the right outputs.
func (v verdict) check(truth []tensor.Tensor) error {
	n := v.given()
	if len(truth) > 0 {
		n++
	}
	if n != 1 {
		return fault.Invalid(`feedback: expected one of "label", "loss", "reward", "losses", or the right outputs as tensors; got %d of them`, n)
	}
	return nil
}

// outcome converts a verdict to what a policy learns from.
func (v verdict) outcome(truth []tensor.Tensor) (selection.Outcome, error) {
	switch {
	case v.Loss != nil:
		return selection.ByLoss(*v.Loss), nil
	case v.Reward != nil:
		return selection.ByLoss(1 - *v.Reward), nil
	case v.Losses != nil:
		return selection.ByLosses(v.losses), nil
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
