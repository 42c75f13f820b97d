package pipelines

import (
	"github.com/shivad/shivad/shiva/nested"
)

// Nested says how the answer becomes objects.
func (p *Plan) Nested() *nested.Pipeline {
	n := &nested.Pipeline{Outputs: map[string]string{}}
	for i := range p.stages {
		s := &p.stages[i]
		n.Stages = append(n.Stages, nested.Stage{Name: s.Name, Model: s.Model, Each: s.Each})
	}
	for i, m := range p.answer {
		if s := &p.stages[m.stage]; m.kind == value {
			n.Outputs[p.Spec.Outputs[i].Name] = s.Name + "." + s.target.Spec.Outputs[m.output].Name
		}
	}
	return n
}
