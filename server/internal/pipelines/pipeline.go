package pipelines

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
)

// A pipeline is a Pipeline as requests see it: its definition, and the models that its stages ask
// now. Immutable, except for what it shares with the one before and after it.
type pipeline struct {
	*Pipeline
	registry *Registry
	gate     *gate.Gate
	shared   *shared
	target   *gate.Target         // as clients see it
	plan     *Plan                // nil: it cannot serve
	fault    error                // why it cannot
	askers   []*gate.Target       // by stage: who asks, as streams distinguish it
	yields   []*yield             // by stage
	openings []*scheduler.Opening // by input; see Plan.openings
}

// shared is what outlives a change of the models or of the definition.
type shared struct {
	yields yields
	tried  atomic.Int64 // when a request last had no estimate count, in ns since 1970
}

// tryEvery is how often a request is served as if nothing were known of how long its stages take.
// What is believed of them makes requests fail that are never executed, so a wrong belief of a late
// stage would never be corrected: this bounds how long it lasts.
const tryEvery = time.Second

// tries reports whether a request that arrives now is one of those.
func (s *shared) tries(now time.Time) bool {
	last := s.tried.Load()
	return now.UnixNano()-last >= int64(tryEvery) && s.tried.CompareAndSwap(last, now.UnixNano())
}

// link makes the pipeline of a definition, from the models that find returns.
func (r *Registry) link(g *gate.Gate, defined *Pipeline, find func(model string) (*gate.Target, error)) *pipeline {
	p := &pipeline{Pipeline: defined, registry: r, gate: g, shared: r.sharedOf(defined.Name)}
	p.target = &gate.Target{ID: scheduler.ModelID{Name: p.Name}, Composite: p}
	if p.plan, p.fault = defined.Fit(find); p.fault == nil {
		t := p.target
		t.Nested = p.plan.Nested()
		t.Spec, t.Live, t.Serves, t.Pixels = p.plan.Spec, math.MaxInt, true, math.MaxInt64
		for i := range p.plan.stages {
			of := p.plan.stages[i].target
			t.Live, t.Serves = min(t.Live, of.Live), t.Serves && of.Serves
			t.Pixels = min(t.Pixels, of.Pixels)
			p.askers = append(p.askers,
				&gate.Target{ID: scheduler.ModelID{Name: p.Name + "." + p.plan.stages[i].Name}, Composite: p})
		}
		p.yields = p.shared.yields.of(p.stages)
		p.openings = p.plan.openings(len(p.Inputs))
		first := p.plan.stages[0].target
		t.Model, t.Deadline, t.Keep = first.Model, cmp.Or(p.slo, first.Deadline), cmp.Or(p.Keep, first.Keep)
	}
	p.target.Spec.Platform = "pipeline"
	return p
}

// Kind implements gate.Composite.
func (*pipeline) Kind() gate.Kind { return gate.Pipeline }

// Status implements gate.Composite.
func (p *pipeline) Status() gate.CompositeStatus {
	s := gate.CompositeStatus{Kind: gate.Pipeline, Name: p.Name, Ready: p.target.Serves, Models: []string{},
		Links: p.Models()}
	if p.plan != nil {
		for i := range p.plan.stages {
			s.Models = append(s.Models, nameOf(p.plan.stages[i].target))
		}
	}
	return s
}

func nameOf(t *gate.Target) string {
	if t.Composite != nil {
		return t.ID.Name
	}
	return t.ID.String()
}

// Unlinked implements gate.Composite.
func (p *pipeline) Unlinked(v gate.View) error { return refusal(v, p.fault) }

// Open implements gate.Composite.
func (p *pipeline) Open(c *gate.Call, q *gate.Request) error {
	if p.fault != nil {
		return refusal(p.gate.As(q.Who), p.fault)
	}
	if q.Candidates != nil {
		return fault.Invalid("%s is for applications, and %q is a pipeline", parameter.CandidateModels, p.Name)
	}
	if err := p.gate.Arrange(c, p.target, q); err != nil {
		return err
	}
	c.Deadline = q.Arrived.Add(cmp.Or(q.Timeout, p.target.Deadline))
	framed := *q
	if framed.Asker == nil {
		framed.Asker = &gate.Asker{Target: p.target}
	}
	framed.Keep = cmp.Or(q.Keep, p.Keep)
	err := c.Enter(&framed)
	if err == nil {
		var r *run
		if r, err = p.open(c, q); err == nil {
			c.Fanout = r
			return nil
		}
	}
	c.Close()
	return err
}

// fastest is at least what a request takes.
func (p *pipeline) fastest() time.Duration {
	if p.plan == nil {
		return 0
	}
	rest := make([]time.Duration, len(p.plan.stages))
	longest := time.Duration(0)
	for i := len(rest) - 1; i >= 0; i-- {
		takes := fastest(p.plan.stages[i].target)
		if t := p.plan.stages[i].timeout; t > 0 {
			takes = min(takes, t)
		}
		takes += rest[i]
		longest = max(longest, takes)
		for _, m := range p.plan.stages[i].makers {
			rest[m] = max(rest[m], takes)
		}
	}
	return longest
}

// fastest is at least what a row of a model takes; 0: nothing is known.
func fastest(t *gate.Target) time.Duration {
	if p, ok := t.Composite.(*pipeline); ok {
		return p.fastest()
	}
	if t.Model == nil {
		return 0
	}
	return t.Model.Fastest()
}

// absent is the fault of a pipeline while the model of a stage is not there. Why changes without a
// change of the models, as when a process ends, so [refusal] says it.
type absent struct {
	at    string // the stage, within pipelines
	by    string // the pipeline that has it
	model string
}

func (a *absent) Error() string { return a.at + a.Unwrap().Error() }

func (a *absent) Unwrap() error {
	return fmt.Errorf("%w: no container of %s has registered yet", scheduler.ErrUnavailable, a.model)
}

// in says of an error which stage it is of.
func (p *Pipeline) in(stage string, err error) error {
	at := fmt.Sprintf("pipeline %q: stage %q: ", p.Name, stage)
	if a, is := errors.AsType[*absent](err); is {
		return &absent{at + a.at, cmp.Or(a.by, p.Name), a.model}
	}
	return fmt.Errorf("%s%w", at, err)
}

// refusal returns a fault as who has the view may know it: with why a model is not there, and with
// names that are near, as if the client had asked for the model by itself.
func refusal(v gate.View, err error) error {
	if a, is := errors.AsType[*absent](err); is {
		if why := v.WhyMissing(a.model, a.by); why != "" {
			return fmt.Errorf("%s%w: %s", a.at, scheduler.ErrUnavailable, why)
		}
	}
	return err
}
