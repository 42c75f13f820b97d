package gate

import (
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// lessons copies what the models were asked that want feedback. It is called before the outer call
// is complete: what they were asked is the door's memory. (Shadows have references of their own,
// for as long.)
func (f *fanout) lessons() (inputs []apps.Inputs) {
	for i := range f.asks {
		if c := &f.asks[i].call; c.Target.learns {
			tensors := apps.Copied(c.Inputs)
			for k := range tensors {
				tensors[k].Name = c.Target.Spec.Inputs[k].Name
			}
			inputs = append(inputs, apps.Inputs{Model: f.asks[i].asked.Model, Rows: c.Rows, Tensors: tensors})
		}
	}
	return inputs
}

// teach tells the models that want it what became known of their answers: once, after the policies
// have learned it. Nobody waits for them.
func (g *Gate) teach(v *Feedback, said []selection.Prediction, inputs []apps.Inputs) {
	t := g.routes.Load()
	var truth []tensor.Tensor
	for _, in := range inputs {
		target := t.target(in.Model)
		if target == nil || !target.learns {
			continue
		}
		if truth == nil {
			truth = apps.Copied(v.truth)
		}
		f := &scheduler.Feedback{Application: v.app.Name, User: v.user, Rows: in.Rows, Inputs: in.Tensors, Truth: truth, Label: v.verdict.Label}
		switch {
		case v.verdict.Loss != nil:
			f.Loss = v.verdict.Loss
		case v.verdict.Reward != nil:
			f.Loss = new(1 - *v.verdict.Reward)
		case v.verdict.Losses != nil:
			loss, ok := v.verdict.Losses[in.Model]
			if !ok {
				continue
			}
			f.Loss = &loss
		}
		for _, s := range said {
			if s.Model == in.Model && s.Outputs != nil {
				f.Outputs = apps.Copied(s.Outputs)
			}
		}
		target.Model.Feedback(f)
	}
}

// target is the table's of a model; nil if it has none.
func (t *table) target(m selection.Model) *Target {
	for _, target := range t.versions[m.Name] {
		if target.ID.Version == m.Version {
			return target
		}
	}
	return nil
}
