package gate

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// An application is one as requests see it: its definition, and the versions of models that it
// links to now. Immutable.
type application struct {
	*apps.App
	metrics *metrics.Model
	models  []selection.Model // candidates: those of the links that the server knows
	targets []*Target         // parallel
	down    []selection.Model // candidates without a live replica
	fault   error             // what the policy cannot take of a model that is linked and so is no candidate; nil: nothing
}

// A Choice is what an application did with a request, for the answer's metadata. It lives until the
// call is closed.
type Choice struct {
	Application string
	Confidence  float64 // agreement of the models asked, 0 to 1
	Missing     []Missing
	Default     bool   // the outputs are the application's default
	Explanation string // why, if they are
}

// Missing is a model that was to be asked and has no part in the answer.
type Missing struct {
	Model string // "name/version"
	Why   string
}

// Absent lists the missing models in one text, for wires on which a parameter is no list.
func (c *Choice) Absent() string { return c.join(func(m Missing) string { return m.Model }, ", ") }

// Because is why they are missing, in one text.
func (c *Choice) Because() string {
	return c.join(func(m Missing) string { return m.Model + ": " + m.Why }, "; ")
}

func (c *Choice) join(text func(Missing) string, separator string) string {
	list := make([]string, len(c.Missing))
	for i, m := range c.Missing {
		list[i] = text(m)
	}
	return strings.Join(list, separator)
}

// link finds the candidates of every application, and gives it the routes of its name. Clients see
// an application as they see a model, with the inputs and outputs of its first candidate.
func (g *Gate) link(t *table) {
	t.apps = make(map[string]*application)
	if g.apps == nil {
		return
	}
	t.unread = !g.apps.Read()
	before := g.routes.Load()
	for _, defined := range g.apps.Apps() {
		g.fanning.Store(true)
		a := &application{App: defined, metrics: g.metrics.Model(defined.Name, "")}
		for target := range t.linked(defined) {
			a.add(target)
		}
		t.apps[a.Name] = a
		if was := before.apps[a.Name]; a.fault != nil && (was == nil || was.fault == nil || was.fault.Error() != a.fault.Error()) {
			g.log.Warn("an application links to a model that its policy cannot take, and does not ask it", "application", a.Name, "error", a.fault)
		}
		if t.versions[a.Name] != nil && !a.Only(a.Name) && before.apps[a.Name] == nil {
			g.log.Warn("an application, made at another server perhaps, has the name of a model and does not link to just that: requests for the name go to the application",
				"application", a.Name, "models", a.Models)
		}
		face := &Target{ID: scheduler.ModelID{Name: a.Name}, application: a, Metrics: a.metrics}
		if len(a.targets) > 0 {
			first := a.targets[0]
			face.Model, face.Spec, face.Cast, face.Deadline = first.Model, first.Spec, first.Cast, first.Deadline
			face.Spec.Platform = "application"
		} else if a.HasDefault() {
			face.standIn(a)
		}
		if a.SLO > 0 {
			face.Deadline = time.Duration(a.SLO)
		}
		a.metrics.SetSLO(face.Deadline)
		for _, target := range a.targets {
			face.Live += target.Live
		}
		t.infer[a.Name] = face
		t.infer["v2/models/"+a.Name+"/infer"] = face
	}
}

// Application is the application that t is how clients see; nil for a model.
func (t *Target) Application() *apps.App {
	if t.application == nil {
		return nil
	}
	return t.application.App
}

// Counted is what the request is counted with: once, by the name that it was sent to. Nil for what
// was not opened.
func (c *Call) Counted() *metrics.Model {
	switch {
	case c.Target == nil:
		return nil
	case c.fanout != nil:
		return c.fanout.app.metrics
	}
	return c.Target.Metrics
}

// linked returns the versions that an application links to now; one may come twice.
func (t *table) linked(a *apps.App) iter.Seq[*Target] {
	return func(yield func(*Target) bool) {
		for _, l := range a.Models {
			name, version := l.Split()
			for _, target := range t.versions[name] {
				here := version == "*" && target.Live > 0 || version == target.ID.Version || version == "" && t.byModel[name] == target
				if here && !yield(target) {
					return
				}
			}
		}
	}
}

// Fits reports what in the models that an application would link to now its policy cannot take;
// nil: nothing.
func (g *Gate) Fits(a *apps.App) error {
	for target := range g.routes.Load().linked(a) {
		if err := target.fits(a); err != nil {
			return err
		}
	}
	return nil
}

// fits reports what in a model the policy cannot take.
func (t *Target) fits(a *apps.App) error {
	if err := a.Selection.Accepts(t.Spec.Inputs, t.Spec.Outputs); err != nil {
		return fmt.Errorf("model %s: %s", t.ID, strings.TrimPrefix(err.Error(), "selection: "))
	}
	return nil
}

func (a *application) add(t *Target) {
	m := selection.Model{Name: t.ID.Name, Version: t.ID.Version}
	if slices.Contains(a.models, m) {
		return
	}
	if err := t.fits(a.App); err != nil {
		a.fault = err
		return
	}
	a.models = append(a.models, m)
	a.targets = append(a.targets, t)
	if t.Live == 0 {
		a.down = append(a.down, m)
	}
}

func (a *application) target(m selection.Model) *Target {
	if i := slices.Index(a.models, m); i >= 0 {
		return a.targets[i]
	}
	return nil
}

func (a *application) unlinked() error {
	if a.fault != nil {
		return fmt.Errorf("%w: application %q has no model that it can ask: %w", scheduler.ErrInvalidInput, a.Name, a.fault)
	}
	return fmt.Errorf("%w: application %q links to %q, and no container of these has registered yet", scheduler.ErrUnavailable, a.Name, a.Models)
}

// openApplication is OpenTarget for an application: it has the policy choose, and opens a call for
// each model that is to be asked. It fails when none of those that are to answer takes the
// question.
func (g *Gate) openApplication(c *Call, a *application, tensors []tensor.Tensor, p *Params) error {
	if len(a.models) == 0 {
		return a.unlinked()
	}
	state, err := g.apps.State(a.App, p.User, a.models)
	if err != nil {
		return err
	}
	left, err := a.leftOut(p.Candidates)
	if err != nil {
		return err
	}
	plan, err := a.plan(state, p.User, left)
	switch {
	case err != nil && left != nil:
		return fmt.Errorf("%w: application %q: %s %q leaves out what the policy asks: %w", scheduler.ErrInvalidInput, a.Name, parameter.CandidateModels, p.Candidates, err)
	case err != nil:
		if a.fault != nil {
			err = fmt.Errorf("%w; not asked is %w", err, a.fault)
		}
		return fmt.Errorf("%w: application %q: %w", scheduler.ErrUnavailable, a.Name, err)
	}
	if err := a.combinable(plan); err != nil {
		return err
	}
	f := newFanout(len(plan.Asks))
	f.gate, f.app, f.call = g, a, c
	f.user, f.id, f.began, f.state = p.User, canonical(p.ID), p.Now, state
	timeout := p.Timeout
	if timeout == 0 {
		timeout = a.deadline(plan)
	}
	for _, asked := range plan.Asks {
		f.params = *p // opening takes what it used
		f.params.Timeout, f.params.Candidates = timeout, nil
		f.ask(asked, a.target(asked.Model), tensors, &f.params)
	}
	f.params = Params{}
	if f.waiting.Load() == 0 {
		err := f.refused[0].why // the heaviest model's
		f.done()
		return err
	}
	answering := &f.firstToAnswer().call
	c.Target, c.Rows, c.Deadline = answering.Target, answering.Rows, answering.Deadline
	c.Squeeze, c.Bridge = answering.Squeeze, answering.Bridge
	c.fanout = f
	return nil
}

// combinable reports whether the answers of those that are asked can be put together.
func (a *application) combinable(plan selection.Plan) error {
	answering, ragged := 0, ""
	for _, asked := range plan.Asks {
		if asked.Shadow {
			continue
		}
		answering++
		if spec := a.target(asked.Model).Spec; spec.Raggeds() != nil {
			ragged = asked.Model.String()
		}
	}
	if answering > 1 && ragged != "" {
		return fmt.Errorf("%w: application %q puts the answers of %d models together row by row, and model %s has a ragged output, "+
			"of which no row can be told from another model's; policies that have one model answer can link to it",
			scheduler.ErrInvalidInput, a.Name, answering, ragged)
	}
	return nil
}

// plan has the policy choose among the models that somebody serves. If it cannot, among all: the
// error, or the default output, then comes from whoever would have been asked. Those of left are
// never asked.
func (a *application) plan(s selection.State, user string, left []selection.Model) (selection.Plan, error) {
	ask := selection.Request{User: user, Random: rand.Uint64(), Without: left}
	if len(a.down) > 0 {
		up := ask
		if up.Without = a.down; len(left) > 0 {
			up.Without = slices.Concat(a.down, left)
		}
		if plan, err := a.Selection.Select(s, up); err == nil {
			return plan, nil
		}
	}
	return a.Selection.Select(s, ask)
}

// deadline is that of all calls for a request that brings none.
func (a *application) deadline(plan selection.Plan) time.Duration {
	if a.SLO > 0 {
		return time.Duration(a.SLO)
	}
	return a.target(plan.Asks[0].Model).Deadline
}
