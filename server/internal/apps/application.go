package apps

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/selection"
)

// An application is an App as requests see it: its definition, and the versions of models that it
// links to now. Immutable.
type application struct {
	*App
	registry *Registry
	gate     *gate.Gate
	target   *gate.Target      // as clients see it
	asker    gate.Asker        // the same, for the calls that it makes
	models   []selection.Model // candidates: linked models that the server knows
	targets  []*gate.Target    // parallel
	down     []selection.Model // candidates without a live replica
	// fault says why a linked model is not a candidate: what in it the policy does not accept; nil:
	// none.
	fault error
	// unfit says why the default output is none of a candidate's; nil: it fits all.
	unfit error
}

// A linking is the state of the models at the time the applications were linked to them.
type linking struct {
	gate  *gate.Gate // nil before the first
	table *gate.Table
	apps  map[string]*application
}

// Link finds the candidates of every application. Clients see an application as they see a model,
// with the inputs and outputs of its first candidate.
func (r *Registry) Link(g *gate.Gate, t *gate.Table) (targets []*gate.Target) {
	before := r.linking.Load()
	now := &linking{gate: g, table: t, apps: make(map[string]*application)}
	for _, defined := range r.All() {
		a := &application{App: defined, registry: r, gate: g}
		for target := range linkedTargets(t, defined) {
			a.add(target)
		}
		now.apps[a.Name] = a
		was := before.apps[a.Name]
		if a.unfit != nil && (was == nil || was.unfit == nil || was.unfit.Error() != a.unfit.Error()) {
			r.cfg.Log.Warn("an application cannot answer with its default output, which does not fit a linked model",
				"application", a.Name, "error", a.unfit)
		}
		if a.fault != nil && (was == nil || was.fault == nil || was.fault.Error() != a.fault.Error()) {
			r.cfg.Log.Warn("an application does not use a linked model, because its policy does not accept the model",
				"application", a.Name, "error", a.fault)
		}
		if t.Versions(a.Name) != nil && !a.Only(a.Name) && was == nil {
			r.cfg.Log.Warn("an application, perhaps created on another server, has the name of a model but does not link to that model alone; requests for the name go to the application",
				"application", a.Name, "models", a.Models)
		}
		a.target = &gate.Target{ID: scheduler.ModelID{Name: a.Name}, Composite: a}
		if len(a.targets) > 0 {
			first := a.targets[0]
			a.target.Model, a.target.Spec, a.target.Cast, a.target.Deadline = first.Model, first.Spec, first.Cast,
				first.Deadline
			a.target.Keep = cmp.Or(a.Keep, first.Keep)
		} else if a.HasDefault() {
			a.target.Spec.Outputs = a.DefaultSpecs()
		}
		a.target.Spec.Platform = "application"
		if a.slo > 0 {
			a.target.Deadline = a.slo
		}
		for _, target := range a.targets {
			a.target.Live += target.Live
			a.target.Serves = a.target.Serves || target.Serves
			a.target.Pixels = max(a.target.Pixels, target.Pixels)
		}
		a.asker.Target = a.target
		targets = append(targets, a.target)
	}
	r.linking.Store(now)
	return targets
}

// linked returns the versions that an application links to now, possibly with duplicates.
func linkedTargets(t *gate.Table, a *App) iter.Seq[*gate.Target] {
	return func(yield func(*gate.Target) bool) {
		for _, l := range a.Models {
			name, version := SplitLink(l)
			for _, target := range t.Versions(name) {
				here := version == "*" && target.Serves || version == target.ID.Version ||
					version == "" && t.Default(name) == target
				if here && !yield(target) {
					return
				}
			}
		}
	}
}

// fits returns an error that says what in a model the policy does not accept.
func (a *App) fits(t *gate.Target) error {
	if err := a.Selection.Accepts(t.Spec.Inputs, t.Spec.Outputs); err != nil {
		return fmt.Errorf("model %s: %s", t.ID, strings.TrimPrefix(err.Error(), "selection: "))
	}
	return nil
}

// defaultFits returns an error that says why the default output is none of a model's, if there is
// one and the model has declared its outputs.
func (a *App) defaultFits(t *gate.Target) error {
	if !a.HasDefault() || len(t.Spec.Outputs) == 0 {
		return nil
	}
	outputs, err := a.DefaultOutput(&t.Spec, 1, nil)
	if err != nil {
		return fmt.Errorf("model %s: %w", t.ID, err)
	}
	release(outputs)
	return nil
}

func (a *application) add(t *gate.Target) {
	m := selection.Model{Name: t.ID.Name, Version: t.ID.Version}
	if slices.Contains(a.models, m) {
		return
	}
	if err := a.fits(t); err != nil {
		a.fault = err
		return
	}
	if err := a.defaultFits(t); err != nil {
		a.unfit = err
	}
	a.models = append(a.models, m)
	a.targets = append(a.targets, t)
	if !t.Serves {
		a.down = append(a.down, m)
	}
}

// candidate returns the target of a model; nil if the model is not a candidate.
func (a *application) candidate(m selection.Model) *gate.Target {
	if i := slices.Index(a.models, m); i >= 0 {
		return a.targets[i]
	}
	return nil
}

// Kind implements gate.Composite.
func (*application) Kind() gate.Kind { return gate.Application }

// Status implements gate.Composite.
func (a *application) Status() gate.CompositeStatus {
	s := gate.CompositeStatus{Kind: gate.Application, Name: a.Name, Policy: a.Policy, Ready: a.target.Serves,
		Models: []string{}, Links: a.Models}
	for _, m := range a.models {
		s.Models = append(s.Models, m.String())
	}
	return s
}

// Unlinked implements gate.Composite.
func (a *application) Unlinked(gate.View) error { return a.unlinked() }

func (a *application) unlinked() error {
	switch {
	case len(a.models) > 0:
		return nil
	case a.fault != nil:
		return fault.Invalid("application %q can use none of its models: %w", a.Name, a.fault)
	}
	return fmt.Errorf("%w: application %q links to %q, but no container of these has registered yet",
		scheduler.ErrUnavailable, a.Name, a.Models)
}

// Open makes the policy choose, and opens a call for each chosen model. It fails if none of the
// models that could answer accepts the request.
func (a *application) Open(c *gate.Call, r *gate.Request) error {
	if err := a.unlinked(); err != nil {
		if a.fault == nil && a.HasDefault() {
			return a.openDefault(c, r, err)
		}
		return err
	}
	f, err := a.fanOut(r)
	if err == nil {
		f.open(c)
	}
	return err
}

// fanOut opens the calls that a request becomes.
func (a *application) fanOut(r *gate.Request) (*fanout, error) {
	if err := a.unlinked(); err != nil {
		return nil, err
	}
	state, err := a.registry.State(a.App, r.User, a.models)
	if err != nil {
		return nil, err
	}
	left, err := a.leftOut(r.Candidates)
	if err != nil {
		return nil, err
	}
	plan, err := a.plan(state, r.User, left)
	switch {
	case err != nil && left != nil:
		return nil, fault.Invalid("application %q: %s %q excludes models that the policy needs: %w", a.Name,
			parameter.CandidateModels, r.Candidates, err)
	case err != nil:
		if a.fault != nil {
			err = fmt.Errorf("%w; the policy does not accept %w", err, a.fault)
		}
		return nil, fmt.Errorf("%w: application %q: %w", scheduler.ErrUnavailable, a.Name, err)
	}
	if err := a.combinable(plan); err != nil {
		return nil, err
	}
	f := newFanout(a, len(plan.Asks))
	f.user, f.id, f.began, f.state = r.User, canonical(r.ID), r.Arrived, state
	timeout := r.Timeout
	if timeout == 0 {
		timeout = a.deadline(plan)
	}
	keep := r.Keep
	if r.Framed() {
		keep = cmp.Or(keep, a.Keep)
	}
	asker := &a.asker
	if by := r.Asker; by != nil && (by.Picture != 0 || by.Stage != nil) { // a pipeline asks
		asker = &gate.Asker{Target: a.target, Picture: by.Picture, Stage: by.Stage}
	}
	for _, asked := range plan.Asks {
		f.request = *r // opening a call modifies it
		f.request.Timeout, f.request.Keep, f.request.Candidates, f.request.Asker, f.request.Use = timeout, keep, nil,
			asker, nil
		f.ask(asked)
	}
	f.request = gate.Request{}
	if f.waiting.Load() == 0 {
		err := f.refused[0].why // the heaviest model's
		f.Close()
		return nil, err
	}
	f.divide()
	if len(a.down) > 0 {
		a.missed(f, state, left)
	}
	return f, nil
}

// combinable returns an error if the answers of the chosen models cannot be combined.
func (a *application) combinable(plan selection.Plan) error {
	answering, ragged := 0, ""
	for _, asked := range plan.Asks {
		if asked.Shadow {
			continue
		}
		answering++
		if spec := a.candidate(asked.Model).Spec; spec.Raggeds() != nil {
			ragged = asked.Model.String()
		}
	}
	if answering > 1 && ragged != "" {
		return fmt.Errorf("%w: application %q combines the answers of %d models row by row, but model %s has a ragged output, "+
			"whose rows cannot be matched with those of other models; only policies that answer with one model can use it",
			scheduler.ErrInvalidInput, a.Name, answering, ragged)
	}
	return nil
}

// plan makes the policy choose among the models that have replicas, or among all if none has: then
// the models that would have been asked determine the error or the default output. Models in left
// are never chosen.
func (a *application) plan(s selection.State, user string, left []selection.Model) (selection.Plan, error) {
	ask := selection.Request{User: user, Random: rand.Uint64(), Without: left}
	if len(a.down) > 0 {
		up := ask
		up.Without = slices.Concat(a.down, left)
		if plan, err := a.Selection.Select(s, up); err == nil {
			return plan, nil
		}
	}
	return a.Selection.Select(s, ask)
}

// deadline returns the deadline of all calls for a request without one.
func (a *application) deadline(plan selection.Plan) time.Duration {
	if a.slo > 0 {
		return a.slo
	}
	return a.candidate(plan.Asks[0].Model).Deadline
}

// missed counts a request at the models that the policy might have chosen if they had replicas.
// Otherwise no request would tell a scaler, which has taken the last replica of each of an
// application's models while nobody asked, that the second of them is wanted again, too.
func (a *application) missed(f *fanout, s selection.State, left []selection.Model) {
	c := &f.firstToAnswer().call
	wanted, err := a.Selection.Select(s, selection.Request{User: f.user, Random: rand.Uint64(), Without: left})
	if err != nil {
		return
	}
	for _, w := range wanted.Asks {
		if slices.Contains(a.down, w.Model) && !f.asked(w.Model) {
			a.candidate(w.Model).Model.Missed(scheduler.Miss{Rows: c.Rows, Newest: c.Frame != nil && c.Keep() > 0})
		}
	}
}

// Missed implements gate.Composite.
func (a *application) Missed(m scheduler.Miss) {
	state, err := a.registry.State(a.App, "", a.models)
	if err != nil {
		return
	}
	wanted, err := a.Selection.Select(state, selection.Request{Random: rand.Uint64()})
	if err != nil {
		return
	}
	for _, w := range wanted.Asks {
		a.candidate(w.Model).Model.Missed(m)
	}
}

// leftOut returns the models of the application that chosen leaves out: nil if chosen is nil. A
// name that none of the models has is an error.
//
// An entry of chosen is "name", for all linked versions of that model, or "name/version".
func (a *application) leftOut(chosen []string) (left []selection.Model, err error) {
	if chosen == nil {
		return nil, nil
	}
	found := make([]bool, len(chosen))
	for _, m := range a.models {
		asked := false
		for i, c := range chosen {
			if c == m.Name || c == m.String() {
				asked, found[i] = true, true
			}
		}
		if !asked {
			left = append(left, m)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return nil, fault.Invalid("%s: %s is not one of the models that application %q may ask now: %s",
			parameter.CandidateModels, fault.Cut(strconv.Quote(chosen[i]), 100), a.Name,
			strings.Join(a.Status().Models, ", "))
	}
	return left, nil
}
