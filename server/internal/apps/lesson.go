package apps

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// lessons copies the inputs of the models that want feedback. It is called before the request is
// answered, since the inputs are in the door's memory, or for a shadow in its call's.
func (f *fanout) lessons() (inputs []Inputs) {
	for i := range f.asks {
		if c := &f.asks[i].call; c.Target.Learns {
			tensors := Copied(c.Inputs)
			for k := range tensors {
				tensors[k].Name = c.Target.Spec.Inputs[k].Name
			}
			inputs = append(inputs, Inputs{Model: f.asks[i].pick.Model, Rows: c.Rows, Tensors: tensors})
		}
	}
	return inputs
}

// teach passes the feedback on to the models that want it: once, after the policies have learned
// it. It does not wait for the models.
func (f *feedback) teach(t *gate.Table, predictions []selection.Prediction, inputs []Inputs) {
	var truth []tensor.Tensor
	for _, in := range inputs {
		target := t.Target(in.Model.Name, in.Model.Version)
		if target == nil || !target.Learns {
			continue
		}
		if truth == nil {
			truth = Copied(f.truth)
		}
		lesson := &scheduler.Feedback{Application: f.app.Name, User: f.user, Rows: in.Rows, Inputs: in.Tensors,
			Truth: truth, Label: f.verdict.Label}
		switch {
		case f.verdict.Loss != nil:
			lesson.Loss = f.verdict.Loss
		case f.verdict.Reward != nil:
			lesson.Loss = new(1 - *f.verdict.Reward)
		case f.verdict.losses != nil:
			loss, ok := f.verdict.losses[in.Model]
			if !ok {
				continue
			}
			lesson.Loss = &loss
		}
		for _, s := range predictions {
			if s.Model == in.Model && s.Outputs != nil {
				lesson.Outputs = Copied(s.Outputs)
			}
		}
		target.Model.Feedback(lesson)
	}
}
