package gate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// An application is one as requests see it: its definition, and the versions of models that it links to now. Immutable.
type application struct {
	*apps.App
	models  []selection.Model // candidates: those of the links that the server knows
	targets []*Target         // parallel
	down    []selection.Model // candidates without a live replica
}

// A Choice is what an application did with a request, for the answer's metadata. It lives as long as the call's answer.
type Choice struct {
	Application string
	Confidence  float64  // agreement of the models asked, 0 to 1
	Missing     []string // models that were asked and not heard in time, "name/version"
	Default     bool     // the outputs are the application's default
	Explanation string   // why, if they are
}

// link finds the candidates of every application, and gives it the routes of its name. Clients see an application as they see a model, with
// the inputs and outputs of its first candidate.
func (g *Gate) link(t *table) {
	t.apps = make(map[string]*application)
	if g.apps == nil {
		return
	}
	for _, defined := range g.apps.Apps() {
		a := &application{App: defined}
		for _, l := range defined.Models {
			name, version := l.Split()
			for _, target := range t.versions[name] {
				switch {
				case version == "*" && target.Live == 0:
				case version == "*", version == target.ID.Version, version == "" && t.byModel[name] == target:
					a.add(target)
				}
			}
		}
		t.apps[a.Name] = a
		face := &Target{ID: scheduler.ModelID{Name: a.Name}, application: a, Metrics: g.metrics.Unrouted()}
		if len(a.targets) > 0 {
			first := a.targets[0]
			face.Model, face.Spec, face.Cast, face.Deadline, face.Metrics = first.Model, first.Spec, first.Cast, first.Deadline, first.Metrics
			face.Spec.Platform = "application"
		}
		for _, target := range a.targets {
			face.Live += target.Live
		}
		face.description = describe(face, []string{})
		t.infer[a.Name] = face
		t.infer["v2/models/"+a.Name+"/infer"] = face
	}
}

func (a *application) add(t *Target) {
	m := selection.Model{Name: t.ID.Name, Version: t.ID.Version}
	if slices.Contains(a.models, m) {
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
	return fmt.Errorf("%w: application %q links to %q, and no container of these has registered yet", scheduler.ErrUnavailable, a.Name, a.Models)
}

// openApplication is OpenTarget for an application: it has the policy choose, and opens a call for each model that is to be asked.
func (g *Gate) openApplication(c *Call, a *application, tensors []tensor.Tensor, p *Params) error {
	if len(a.models) == 0 {
		return a.unlinked()
	}
	f := &fanout{gate: g, app: a, user: p.User, id: string(p.ID), began: p.Now}
	var err error
	if f.state, err = g.apps.State(a.App, p.User, a.models); err != nil {
		return err
	}
	ask := selection.Request{User: p.User, Random: rand.Uint64(), Without: a.down}
	if len(a.down) == len(a.models) {
		ask.Without = nil // nobody is there: the error, or the default, comes from whoever would have been asked
	}
	plan, err := a.Selection.Select(f.state, ask)
	if err != nil {
		return fmt.Errorf("%w: application %q: %w", scheduler.ErrUnavailable, a.Name, err)
	}
	q := *p
	if q.Timeout == 0 {
		q.Timeout = time.Duration(a.SLO)
	}
	for i, asked := range plan.Asks {
		target := a.target(asked.Model)
		if target == nil {
			continue // of a state that knows more than this server
		}
		r := q // OpenTarget takes what it used
		if err := f.ask(asked, target, tensors, &r); err != nil {
			if i == 0 {
				f.close()
				return err
			}
			f.missing = append(f.missing, asked)
		}
	}
	if len(f.asks) == 0 {
		return fmt.Errorf("%w: application %q: none of its models is known here", scheduler.ErrUnavailable, a.Name)
	}
	first := f.asks[0]
	c.Target, c.Model = first.Target, first.Target.Model
	c.Squeeze, c.Rows, c.Deadline = first.Squeeze, first.Rows, first.Deadline
	c.fanout = f
	f.call = c
	return nil
}
