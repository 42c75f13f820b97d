package operate

import (
	"context"
	"strings"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/pipelines"
)

// Pipelines creates and changes pipelines.
type Pipelines struct {
	Store  *Store
	Report *Report
}

// List returns all pipelines, by name.
func (ps Pipelines) List() ([]admin.Pipeline, error) {
	// An unread store is an error, not an incomplete list.
	if _, err := ps.Store.State().List("pipelines/"); err != nil {
		return nil, refusal(err)
	}
	var list []admin.Pipeline
	for _, p := range ps.Store.Pipelines().All() {
		d := p.Definition
		d.Inputs = append([]string{}, d.Inputs...) // [] in JSON
		list = append(list, d)
	}
	return list, nil
}

// Status returns how a pipeline of the List is served.
func (ps Pipelines) Status(d admin.Pipeline) admin.PipelineStatus {
	origin := admin.OriginStore
	if ps.Store.Pipelines().Fixed(d.Name) {
		origin = admin.OriginFile
	}
	return admin.PipelineStatus{Pipeline: d, Origin: origin, Faults: append([]string{}, ps.Faults(d)...),
		Load: ps.Report.stageLoads(d)}
}

// Check returns everything that is wrong with a pipeline. Models that are not there are not.
func (ps Pipelines) Check(d admin.Pipeline) error {
	_, err := ps.Store.Pipelines().Check(d)
	return refusal(err)
}

// Faults lists all that is wrong with a pipeline, with the models that serve now.
func (ps Pipelines) Faults(d admin.Pipeline) []string {
	return ps.Store.Pipelines().Problems(d)
}

// Create creates a pipeline. It fails if the name is taken.
func (ps Pipelines) Create(ctx context.Context, d admin.Pipeline) (admin.Pipeline, error) {
	made, err := ps.Store.Pipelines().Create(ctx, d)
	if err != nil {
		return d, refusal(err)
	}
	return made.Definition, nil
}

// Change modifies a pipeline in one atomic step, which may call change several times.
func (ps Pipelines) Change(ctx context.Context, name string,
	change func(admin.Pipeline) (admin.Pipeline, error)) (admin.Pipeline, error) {
	made, err := ps.Store.Pipelines().Change(ctx, name, func(d *pipelines.Definition) (err error) {
		*d, err = change(*d)
		return err
	})
	if err != nil {
		return admin.Pipeline{}, refusal(err)
	}
	return made.Definition, nil
}

// Delete deletes a pipeline.
func (ps Pipelines) Delete(ctx context.Context, name string) error {
	return refusal(ps.Store.Pipelines().Delete(ctx, name))
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
		if t, err := r.Gate.Target(model, version); err == nil {
			l.Replicas = t.Live
			if t.Model != nil {
				if recent := t.Model.Stats().Recent; recent.Batches > 0 {
					l.Batch = float64(recent.Rows) / float64(recent.Batches)
				}
			}
		}
		l.Summary = l.Words()
		list[i] = l
	}
	return list
}
