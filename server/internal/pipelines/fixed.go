package pipelines

import (
	"github.com/shivad/shivad/server/internal/fault"
)

// Configure sets the pipelines of the configuration, which has checked them. Those of the store
// that have the same names are not served.
func (r *Registry) Configure(definitions []Definition) {
	fixed := make(map[string]*Pipeline, len(definitions))
	for _, d := range definitions {
		p, err := New(d)
		if err != nil {
			r.cfg.Log.Error("a pipeline of the configuration is not usable", "pipeline", d.Name, "error", err)
			continue
		}
		fixed[d.Name] = p
	}
	r.Fix(fixed)
}

// Problems lists all that is wrong with a definition, by itself or with the models that serve now;
// missing models are among it.
func (r *Registry) Problems(d Definition) (list []string) {
	c := check(d)
	for _, f := range c.faults {
		list = append(list, f.Text)
	}
	if list != nil {
		return list
	}
	if r.Find(d.Name) == nil { // the name of one that is defined is its own
		if err := r.taken(d.Name); err != nil {
			list = append(list, fault.Text(err))
		}
	}
	if err := r.fit(c.p); err != nil {
		list = append(list, fault.Text(refusal(r.linking.Load().gate.View, err)))
	}
	return list
}
