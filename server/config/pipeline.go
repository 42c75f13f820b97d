package config

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shivad/shivad/scheduler/naming"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/pipelines"
	"github.com/shivad/shivad/shiva/nearest"
)

// PipelineDefinitions returns the pipelines of the file, by name.
func (c Config) PipelineDefinitions() (list []pipelines.Definition) {
	for _, name := range slices.Sorted(maps.Keys(c.Pipelines)) {
		p := clonePipeline(c.Pipelines[name])
		p.Name = name
		list = append(list, p)
	}
	return list
}

// validatePipelines checks pipelines by themselves and together. Whether they fit their models is
// known when these have registered.
func (c Config) validatePipelines(fs *faults) {
	for _, p := range c.PipelineDefinitions() {
		key := joinKey("pipeline", p.Name)
		if err := naming.CheckModel(p.Name); err != nil {
			fs.Check(key, err)
			continue
		}
		fs.of(key, pipelines.Faults(p))
		if near := c.misspelled(p); near != "" {
			fs.Add(joinKey("pipeline", near), "did you mean %s? It has no stages", key)
		}
	}
	c.circles(fs)
}

// misspelled is the pipeline that may have the stages of p, which has none: the table of a stage
// below a name that is misspelled is that of another pipeline.
func (c Config) misspelled(p admin.Pipeline) string {
	if len(p.Stages) > 0 {
		return ""
	}
	var others []string
	for _, name := range slices.Sorted(maps.Keys(c.Pipelines)) {
		if len(c.Pipelines[name].Inputs) == 0 {
			others = append(others, name)
		}
	}
	return cmp.Or(append(nearest.Names(p.Name, others), "")...)
}

// circles finds pipelines of the file that contain one another. Each circle is said once, from the
// first of its pipelines by name.
func (c Config) circles(fs *faults) {
	left := make(map[string]bool) // all that it asks is known
	var visit func(name string, within []string)
	visit = func(name string, within []string) {
		if i := slices.Index(within, name); i >= 0 {
			circle := within[i:]
			// Another pipeline may lead into its middle.
			first := slices.Index(circle, slices.Min(circle))
			circle = slices.Concat(circle[first:], circle[:first])
			fs.Add(joinKey("pipeline", circle[0])+".stage", "%s", pipelines.Circle(circle))
			return
		}
		p, is := c.Pipelines[name]
		if !is || left[name] {
			return
		}
		for i := range p.Stages {
			visit(p.Stages[i].Model, append(within, name))
		}
		left[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pipelines)) {
		visit(name, nil)
	}
}

func clonePipeline(p admin.Pipeline) admin.Pipeline {
	p.Inputs, p.Outputs, p.Stages = slices.Clone(p.Inputs), maps.Clone(p.Outputs), slices.Clone(p.Stages)
	for i := range p.Stages {
		s := &p.Stages[i]
		s.Inputs = maps.Clone(s.Inputs)
		if s.Keep != nil {
			s.Keep = new(*s.Keep)
			s.Keep.Classes = slices.Clone(s.Keep.Classes)
		}
		if s.Required != nil {
			s.Required = new(*s.Required)
		}
	}
	return p
}
