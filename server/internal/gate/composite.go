package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// Composites are names that each stand for several models: all applications, or all pipelines. The
// gate has routes to them; the composites decide what becomes of a request.
type Composites interface {
	// Names lists all of them. known is false while the store has not been read yet.
	Names() (names []string, known bool)

	// Link returns a target for each, made of the models in t and of the composites that were
	// attached before these. The gate calls it whenever models or composites change, one call at a
	// time, before t comes into force.
	Link(g *Gate, t *Table) []*Target
}

// A Composite stands behind a Target in the place of a model. Its methods may be called from any
// goroutine.
type Composite interface {
	// Open turns a request into calls to models, and sets Target, Rows, Deadline, Squeeze, Bridge
	// and Fanout of c, which is open from then on. On an error c is unchanged.
	Open(c *Call, r *Request) error

	// Unlinked returns the error of a composite that has no model to ask, for who has the view; nil
	// if it has one.
	Unlinked(v View) error

	// Missed counts rows that did not come at the models that they would have come to; see
	// scheduler.Model.Missed.
	Missed(m scheduler.Miss)

	Kind() Kind
	Status() CompositeStatus
}

// A Learner is a composite that learns from feedback.
type Learner interface {
	// OpenFeedback reads a client's judgement of an answer.
	OpenFeedback(r *Request, v *Verdict) (Feedback, error)
}

// A Kind of composites, in the word for one of them.
type Kind string

const (
	Application Kind = "application"
	Pipeline    Kind = "pipeline"
)

// A CompositeStatus is a composite as "!models" shows it.
type CompositeStatus struct {
	Kind   Kind     `json:"-"`
	Name   string   `json:"name"`
	Policy string   `json:"policy,omitempty"` // of an application
	Ready  bool     `json:"ready"`            // live replicas serve what it needs
	Models []string `json:"models"`           // models that it may ask now, "name/version"
	Links  []string `json:"-"`                // links of its definition
}

// A Fanout is the set of calls to models that one call to a composite becomes. It belongs to the
// call from Open to Close.
type Fanout interface {
	// Start appends the calls to submit in place of the original call. The fanout completes the
	// original call with Finish, perhaps before Start returns.
	Start(calls []*Call) []*Call

	// Cancel cancels the calls.
	Cancel()

	// Close releases the fanout and what the call's outputs refer to.
	Close()

	// Voices is the number of models' answers that are held until Close.
	Voices() int
}

// Feedback is a judgement of an application's answer, on its way into the state of a policy.
//
// It belongs to its door until Learn, and again from done on; in between the door may only cancel
// it. The tensors that it was opened with, their memory and the slices of its Request must not
// change until Close.
type Feedback interface {
	// Learn makes the policy learn, once. done is called exactly once, under the rules of an
	// Owner's Complete: from any goroutine, perhaps before Learn returns, and it must not block.
	Learn(done func(reply Learned, err error))

	// Cancel cancels calls to models, since the client has disconnected. Learning that has begun
	// still completes, and done is still called.
	Cancel()

	// Close releases what the feedback holds. It is called once, after done or instead of Learn.
	Close()
}

// Learned is the answer to feedback.
type Learned struct {
	Application string `json:"application"`
	Learned     bool   `json:"learned"` // false: this feedback was learned earlier
	Rounds      uint64 `json:"rounds"`  // how often the policy has learned for this user
}

// JSON is the answer on the wires.
func (l Learned) JSON() []byte {
	text, err := json.Marshal(l)
	if err != nil {
		panic(err) // texts and numbers cannot fail
	}
	return text
}

// A Verdict is a client's later judgement of a request: exactly one of the members is set.
type Verdict struct {
	// Label is the right answer: a value or list, or an object of them by output.
	Label  json.RawMessage    `json:"label"`
	Loss   *float64           `json:"loss"`   // 0 (the best) to 1
	Reward *float64           `json:"reward"` // 1 minus the loss
	Losses map[string]float64 `json:"losses"` // for each model, by "name/version"
}

// Learn makes the policy learn, and returns when it has learned. If ctx ends first, calls to models
// are cancelled.
func Learn(ctx context.Context, f Feedback) (reply Learned, err error) {
	done := make(chan struct{})
	f.Learn(func(r Learned, e error) {
		reply, err = r, e
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
		f.Cancel()
		<-done
	}
	return reply, err
}

// Updates returns the application that a feedback route, "name/update", refers to.
func (v View) Updates(route string) (application string, ok bool) {
	t := v.table()
	if len(t.composites) == 0 {
		return "", false
	}
	name, ok := strings.CutSuffix(route, "/update")
	return name, ok && t.composites[name] != nil
}

// OpenFeedback reads feedback for the application that r.Model names. v is the judgement; nil means
// that r.Parameters has its members. Tensors alongside a verdict in the metadata are the input;
// tensors without a verdict are the right outputs, and need the id of a request. With the id of a
// request that this server knows, the feedback judges the predictions made then, even if the input
// is sent too. With an unknown id or none, the models are
// asked again and their new predictions are judged. So the meaning of a message does not depend on
// the server that receives it.
func (g *Gate) OpenFeedback(r *Request, v *Verdict) (Feedback, error) {
	if g.draining.Load() {
		return nil, ErrDraining
	}
	if err := r.Who.Check(access.Feedback, r.Model); err != nil {
		return nil, err
	}
	t := g.table(r.Who)
	if target := t.composites[r.Model]; target != nil {
		if l, ok := target.Composite.(Learner); ok {
			return l.OpenFeedback(r, v)
		}
		return nil, fmt.Errorf("%w: %q is a %s: only applications take feedback", scheduler.ErrNotFound, r.Model,
			target.kind())
	}
	return nil, t.unknown(r.Model+"/update", shivaWords)
}

// A Choice says how an application answered, for the answer's metadata. It lives until the call is
// closed.
type Choice struct {
	Application string
	Confidence  float64 // agreement of the models asked, 0 to 1
	Missing     []Missing
	Default     bool   // the outputs are the application's default
	Explanation string // why, if Default
}

// Outcome classifies how a request ended, for the metrics. c is nil for a model.
func Outcome(err error, c *Choice) metrics.Outcome {
	if err == nil && c != nil && c.Default {
		return metrics.Default
	}
	return fault.Outcome(err)
}

// Missing is a model that should have contributed to the answer and did not.
type Missing struct {
	Model string // "name/version"
	Why   string
}

// AppendMissing appends the missing models as a JSON object of the reasons by model. Clients get
// them in this form only, as a text where a wire has no objects.
func (c *Choice) AppendMissing(b []byte) []byte {
	b = append(b, '{')
	for i, m := range c.Missing {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsonscan.AppendString(b, m.Model), ':')
		b = jsonscan.AppendString(b, m.Why)
	}
	return append(b, '}')
}

// link adds the routes of composites. rows has the measured sizes of the table before.
func (g *Gate) link(t *Table, rows map[scheduler.ModelID]*atomic.Int64) {
	t.composites = make(map[string]*Target)
	for _, kind := range g.composites {
		targets := kind.Link(g, t)
		t.composites = maps.Clone(t.composites) // a kind may keep the map that it got
		for _, target := range targets {
			g.fanning.Store(true)
			target.Metrics = g.cfg.Metrics.Model(target.ID.Name, "")
			target.Metrics.SetSLO(target.Deadline)
			if target.Nested != nil {
				var names []string
				for _, s := range target.Nested.Stages {
					names = append(names, s.Name)
				}
				target.Stages = target.Metrics.Stages(names...)
			}
			target.pictures = slices.ContainsFunc(target.Spec.Inputs,
				func(in tensor.Spec) bool { return in.Image != nil })
			target.setRow(rows)
			g.rows[target.ID] = target.rowSeen
			target.compose()
			t.composites[target.ID.Name] = target
			t.route(t.infer, target.ID.Name)
		}
	}
}

// kind is what a target without a model of its own is.
func (t *Target) kind() Kind { return t.Composite.Kind() }

// Composites returns the targets of the kinds that are linked before the caller, by name. It is for
// Link alone: the table is not complete before all kinds are linked. The map does not change, and
// callers must not change it.
func (t *Table) Composites() map[string]*Target { return t.composites }

// Counted returns the metrics that count the request: once, under the name that it was sent to. It
// is nil for a call that was not opened.
func (c *Call) Counted() *metrics.Model { return c.metrics }
