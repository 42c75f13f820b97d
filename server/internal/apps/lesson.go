package apps

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// lessons copies what the models were asked that want feedback. It is called before the request
// is answered: what they were asked is the door's memory. (Shadows have references of their own,
// for as long.)
func (f *fanout) lessons() (inputs []Inputs) {
	for i := range f.asks {
		if c := &f.asks[i].call; c.Target.Learns {
			tensors := Copied(c.Inputs)
			for k := range tensors {
				tensors[k].Name = c.Target.Spec.Inputs[k].Name
			}
			inputs = append(inputs, Inputs{Model: f.asks[i].asked.Model, Rows: c.Rows, Tensors: tensors})
		}
	}
	return inputs
}

// teach tells the models that want it what became known of their answers: once, after the policies
// have learned it. Nobody waits for them.
func (f *feedback) teach(t *gate.Table, said []selection.Prediction, inputs []Inputs) {
	var truth []tensor.Tensor
	for _, in := range inputs {
		target := t.Target(in.Model.Name, in.Model.Version)
		if target == nil || !target.Learns {
			continue
		}
		if truth == nil {
			truth = Copied(f.truth)
		}
		lesson := &scheduler.Feedback{Application: f.app.Name, User: f.user, Rows: in.Rows, Inputs: in.Tensors, Truth: truth, Label: f.verdict.Label}
		switch {
		case f.verdict.Loss != nil:
			lesson.Loss = f.verdict.Loss
		case f.verdict.Reward != nil:
			lesson.Loss = new(1 - *f.verdict.Reward)
		case f.verdict.Losses != nil:
			loss, ok := f.verdict.Losses[in.Model]
			if !ok {
				continue
			}
			lesson.Loss = &loss
		}
		for _, s := range said {
			if s.Model == in.Model && s.Outputs != nil {
				lesson.Outputs = Copied(s.Outputs)
			}
		}
		target.Model.Feedback(lesson)
	}
}
