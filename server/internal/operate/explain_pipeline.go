package operate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/plural"
)

// explainPipeline says what a pipeline does with requests, how much of that each stage is, and what
// to change; nil if there is no such pipeline.
func (r *Report) explainPipeline(name string) (out []string) {
	registry := r.Store.Pipelines()
	p := registry.Find(name)
	if p == nil {
		return nil
	}
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	var stages []string
	for _, s := range p.Stages {
		text := fmt.Sprintf("%s asks %s", s.Name, s.Model)
		if s.Each != "" {
			text += " about each of " + s.Each
		}
		stages = append(stages, text)
	}
	say("It is a pipeline: stage %s.", strings.Join(stages, ", stage "))
	for _, f := range registry.Problems(p.Definition) {
		say("Requests are refused: %s.", f)
	}
	for i, s := range p.Stages {
		if slices.ContainsFunc(p.Stages[:i], func(o admin.Stage) bool { return o.Model == s.Model }) {
			continue
		}
		for _, why := range r.explainUnserved(s.Model) {
			say("Of stage %s: %s", s.Name, why)
		}
	}
	h := r.Metrics.Model(name, "").Health()
	if judged := h.Judged(); judged > 0 {
		within := ""
		if h.SLO > 0 {
			within = fmt.Sprintf(" within %v", h.SLO)
		}
		say("Of %s since the server started %s had a result%s; those that clients withdrew or got wrong do not count.",
			plural.Of(judged, "request"), percent(h.InTime, judged), within)
	} else {
		say("No request was sent to it since the server started.")
	}
	loads := r.stageLoads(p.Definition)
	for i, l := range loads {
		out = append(out, explainStage(p.Stages[i], l))
	}
	return append(out, r.stageRemedies(p.Definition, loads)...)
}

// explainUnserved says why a stage's model is not served; nil if it is, or if the configuration
// does not name it.
func (r *Report) explainUnserved(model string) []string {
	name, version, _ := strings.Cut(model, "/")
	target, err := r.Gate.Target(name, version)
	if unserved(target) {
		return []string{fmt.Sprintf("No replica of %s is live: its rows fail, and with them requests that need it. Start a container of %s, or see in \"shivactl status\" why it does not register.",
			target.ID, target.ID)}
	} else if err != nil && r.Gate.TargetsOf(name) == nil {
		return r.explainAbsent(name)
	}
	return nil
}

// unserved reports whether requests to a model, which may be nil, fail for want of a replica.
func unserved(t *gate.Target) bool { return t != nil && t.Composite == nil && !t.Serves }

// explainStage says what a stage did in the last minute.
func explainStage(s admin.Stage, l admin.StageLoad) string {
	if l.Requests == 0 {
		return fmt.Sprintf("Stage %s had no requests in the last minute.", s.Name)
	}
	text := fmt.Sprintf("Stage %s had %s in the last minute, with %s each", s.Name, plural.Of(l.Requests, "request"),
		meanRows(float64(l.Rows)/float64(l.Requests)))
	if l.LeftOut > 0 {
		text += fmt.Sprintf(" (keep left out %s of the elements)", percent(l.LeftOut, l.LeftOut+l.Rows))
	}
	if l.Batch > 0 {
		text += fmt.Sprintf("; batches of %s have %s on average", s.Model, meanRows(l.Batch))
	}
	if l.Took > 0 {
		text += fmt.Sprintf("; a request is there for %v, waits for %v of that, and uses up %s %% of the time to its deadline",
			spanOf(l.Took), spanOf(l.Waited), figure(100*l.Share))
	}
	if lost := l.LostRows(); lost > 0 {
		var why []string
		for _, name := range slices.Sorted(maps.Keys(l.Lost)) {
			why = append(why, fmt.Sprintf("%d %s", l.Lost[name], strings.ReplaceAll(name, "_", " ")))
		}
		text += fmt.Sprintf("; %s of the rows were lost: %s", percent(lost, l.Rows), strings.Join(why, ", "))
	}
	return text + "."
}

// meanRows is a mean number of rows.
func meanRows(n float64) string {
	if text := figure(n); text != "1" {
		return text + " rows"
	}
	return "1 row"
}

func spanOf(seconds float64) time.Duration {
	return round(time.Duration(seconds * float64(time.Second)))
}

// stageRemedies says what to change: for each stage that loses rows, and for the one that takes
// most of the time.
func (r *Report) stageRemedies(d admin.Pipeline, loads []admin.StageLoad) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for i, l := range loads {
		s := d.Stages[i]
		fewer := ""
		if s.Each != "" {
			fewer = ", let keep leave more out"
		}
		switch {
		case l.NotBegun > 0:
			say("Stage %s did not begin %s, since they could not be in time: give the stages before it more replicas or faster models%s, or requests a later deadline.",
				s.Name, plural.Of(l.NotBegun, "row"), fewer)
		case l.LostRows() > 0:
			say("Why rows of stage %s are lost: \"shivactl explain %s\".", s.Name, s.Model)
		}
		if need, live := r.needOf(s.Model); need > live {
			say("%s needs %s for the rows of stage %s and of others, and has %d.", s.Model,
				plural.Of(need, "replica"), s.Name, live)
		}
	}
	slowest := -1
	for i, l := range loads {
		if l.Took > 0 && (slowest < 0 || cmp.Compare(l.Took, loads[slowest].Took) > 0) {
			slowest = i
		}
	}
	if slowest < 0 {
		return out
	}
	l, s := loads[slowest], d.Stages[slowest]
	if 2*l.Waited > l.Took {
		say("Most of the time is spent at stage %s, and most of that in waiting: more replicas of %s shorten it. \"shivactl explain %s\" says what bounds the present ones.",
			s.Name, s.Model, s.Model)
	} else {
		say("Most of the time is spent at stage %s, in execution: a faster %s shortens it. \"shivactl explain %s\" says how long its batches take.",
			s.Name, s.Model, s.Model)
	}
	return out
}

// needOf returns how many replicas a stage's model needs, and has; zeros if it is no model.
func (r *Report) needOf(model string) (need, live int) {
	name, version, _ := strings.Cut(model, "/")
	t, err := r.Gate.Target(name, version)
	if err != nil || t.Model == nil {
		return 0, 0
	}
	stats := t.Model.Stats()
	return stats.Need.Replicas, stats.Live
}

// pipelineWarnings names the stages that lose many of their rows.
func pipelineWarnings(all []admin.PipelineLoad) (out []string) {
	for _, p := range all {
		for _, l := range p.Stages {
			if lost := l.LostRows(); lost >= fewAnswer && float64(lost) >= worrying*float64(l.Rows) {
				out = append(out,
					fmt.Sprintf("stage %s of pipeline %s has lost %s of its rows in the last minute; \"shivactl explain %s\" says more",
						l.Stage, p.Name, percent(lost, l.Rows), p.Name))
			}
		}
	}
	return out
}
