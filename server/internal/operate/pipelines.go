package operate

import (
	"strings"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/pipelines"
)

// Pipelines creates and changes pipelines.
type Pipelines struct {
	Composites[admin.Pipeline, *pipelines.Pipeline]
	Report *Report
}

// PipelinesOf are those that a report shows.
func PipelinesOf(r *Report) Pipelines {
	return Pipelines{Composites[admin.Pipeline, *pipelines.Pipeline]{
		func() *composite.Definitions[admin.Pipeline, *pipelines.Pipeline] {
			return r.Store.Pipelines().Definitions
		},
	}, r}
}

// List returns all pipelines, by name.
func (ps Pipelines) List() ([]admin.Pipeline, error) {
	list, err := ps.Composites.List()
	for i := range list {
		list[i].Inputs = append([]string{}, list[i].Inputs...) // [] in JSON
	}
	return list, err
}

// Status returns how a pipeline of the List is served.
func (ps Pipelines) Status(d admin.Pipeline) admin.PipelineStatus {
	origin := admin.OriginStore
	if ps.Report.Store.Pipelines().Fixed(d.Name) {
		origin = admin.OriginFile
	}
	return admin.PipelineStatus{Pipeline: d, Origin: origin, Faults: append([]string{}, ps.Faults(d)...),
		Load: ps.Report.stageLoads(d)}
}

// Faults lists all that is wrong with a pipeline, with the models that serve now.
func (ps Pipelines) Faults(d admin.Pipeline) []string {
	return ps.Report.Store.Pipelines().Problems(d)
}

// pipelineLoads returns how the stages of all pipelines did in the last minute.
func (r *Report) pipelineLoads() (all []admin.PipelineLoad) {
	for _, p := range r.Store.Pipelines().All() {
		all = append(all, admin.PipelineLoad{Name: p.Name, Stages: r.stageLoads(p.Definition)})
	}
	return all
}

// stageLoads returns how each stage of a pipeline did in the last minute.
func (r *Report) stageLoads(d admin.Pipeline) []admin.StageLoad {
	counts := r.Metrics.Model(d.Name, "")
	list := make([]admin.StageLoad, len(d.Stages))
	for i, s := range d.Stages {
		l := admin.StageLoad{Stage: s.Name, Lost: map[string]uint64{}}
		if stage := counts.Stage(s.Name); stage != nil {
			_, c := stage.Counts()
			l.Requests, l.Rows, l.LeftOut, l.NotBegun = c.Requests, c.Rows.Answered(), c.LeftOut, c.NotBegun
			for o, n := range c.Rows.Lost() {
				l.Lost[o.String()] = n
			}
			if n := float64(c.Begun); n > 0 {
				l.Took, l.Waited, l.Share = c.Took.Seconds()/n, c.Waited.Seconds()/n, c.Share/n
				l.Took99 = c.Within(0.99).Seconds()
			}
		}
		model, version, _ := strings.Cut(s.Model, "/")
		t, err := r.Gate.Target(model, version)
		if err == nil {
			l.Replicas = t.Live
			if t.Model != nil {
				if recent := t.Model.Stats().Recent; recent.Batches > 0 {
					l.Batch = float64(recent.Rows) / float64(recent.Batches)
				}
			}
		}
		if l.Summary = l.Words(); unserved(t) {
			l.Summary = "no live replica, " + l.Summary
		}
		list[i] = l
	}
	return list
}
