package admintest

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/admin"
)

// pipelines is the server as the paths of pipelines see it: it checks little more than that models
// are served, and has had the same requests at each stage.
type pipelines struct{ *Server }

func (s pipelines) List() ([]admin.Pipeline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.lines), nil
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

func (s pipelines) Check(p admin.Pipeline) error {
	if p.Name == "" || len(p.Stages) == 0 {
		return refuse(http.StatusBadRequest, "pipeline %q: stages: %d, expected 1 to 32", p.Name, len(p.Stages))
	}
	return nil
}

// at returns the index of a pipeline. s.mu is held.
func (s pipelines) at(name string) (int, error) {
	i := slices.IndexFunc(s.lines, func(p admin.Pipeline) bool { return p.Name == name })
	if i < 0 {
		return -1, refuse(http.StatusNotFound, "no pipeline %q", name)
	}
	return i, nil
}

func (s pipelines) Create(_ context.Context, p admin.Pipeline) (admin.Pipeline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, _ := s.at(p.Name); i >= 0 {
		return p, refuse(http.StatusConflict, "exists already: pipeline %q", p.Name)
	}
	s.lines = append(s.lines, p)
	return p, nil
}

func (s pipelines) Change(_ context.Context, name string,
	change func(admin.Pipeline) (admin.Pipeline, error)) (admin.Pipeline, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.at(name)
	if err != nil {
		return admin.Pipeline{}, err
	}
	p, err := change(s.lines[i])
	if err == nil {
		s.lines[i] = p
	}
	return p, err
}

func (s pipelines) Delete(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.at(name)
	if err == nil {
		s.lines = slices.Delete(s.lines, i, i+1)
	}
	return err
}
