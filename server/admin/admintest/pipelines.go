package admintest

import (
	"net/http"
	"strings"

	"github.com/shivad/shivad/server/admin"
)

// pipelines is the server as the paths of pipelines see it: it checks little more than that models
// are served, and has had the same requests at each stage.
type pipelines struct{ definitions[admin.Pipeline] }

func (s *Server) pipelines() pipelines {
	return pipelines{definitions[admin.Pipeline]{s, "pipeline", &s.lines,
		func(p *admin.Pipeline) string { return p.Name },
		func(p admin.Pipeline) error {
			if p.Name == "" || len(p.Stages) == 0 {
				return refuse(http.StatusBadRequest, "pipeline %q: stages: %d, expected 1 to 32", p.Name, len(p.Stages))
			}
			return nil
		}, func(string) {}}}
}

func (s pipelines) Status(p admin.Pipeline) admin.PipelineStatus {
	one := admin.PipelineStatus{Pipeline: p, Origin: admin.OriginStore, Faults: append([]string{}, s.Faults(p)...)}
	for _, stage := range p.Stages {
		l := admin.StageLoad{Stage: stage.Name, Requests: 10, Rows: 40, LeftOut: 8, NotBegun: 1,
			Lost: map[string]uint64{"deadline_exceeded": 1},
			Took: 0.012, Took99: 0.033, Waited: 0.004, Share: 0.12, Batch: 7.5, Replicas: 2}
		l.Summary = l.Words()
		one.Load = append(one.Load, l)
	}
	return one
}

func (s pipelines) Faults(p admin.Pipeline) (list []string) {
	for _, stage := range p.Stages {
		model, _, _ := strings.Cut(stage.Model, "/")
		if len(s.versions(model)) == 0 {
			list = append(list, "stage \""+stage.Name+"\": no container of \""+stage.Model+"\" has registered yet")
		}
	}
	return list
}
