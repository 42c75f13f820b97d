package gate

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// Applications are names that each stand for several models. The gate has routes to them; the
// applications decide what becomes of a request.
type Applications interface {
	// Names lists all applications. known is false while the store has not been read yet.
	Names() (names []string, known bool)

	// Link returns a target for each application, made of the models in t. The gate calls it
	// whenever models or applications change, one call at a time, before t comes into force.
	Link(g *Gate, t *Table) []*Target
}

// An Application stands behind a Target in the place of a model. Its methods may be called from any
// goroutine.
type Application interface {
	// Open turns a request into calls to models, and sets Target, Rows, Deadline, Squeeze, Bridge
	// and Fanout of c, which is open from then on. On an error c is unchanged.
	Open(c *Call, r *Request) error

	// OpenFeedback reads a client's judgement of an answer.
	OpenFeedback(r *Request) (Feedback, error)

	// Unlinked returns the error of an application that has no model to ask; nil if it has one.
	Unlinked() error

	Status() ApplicationStatus
}

// An ApplicationStatus is an application as "!models" shows it.
type ApplicationStatus struct {
	Name   string   `json:"name"`
	Policy string   `json:"policy"`
	Ready  bool     `json:"ready"`  // a live replica serves one of its models
	Models []string `json:"models"` // models that it may ask now, "name/version"
	Links  []string `json:"-"`      // links of its definition
}

// A Fanout is the set of calls to models that one call to an application becomes. It belongs to the
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
	if len(t.apps) == 0 {
		return "", false
	}
	name, ok := strings.CutSuffix(route, "/update")
	return name, ok && t.apps[name] != nil
}

// OpenFeedback reads feedback for the application that r.Model names. Tensors alongside a verdict
// in the metadata are the input; tensors without a verdict are the right outputs, and need the id
// of a request. With the id of a request that this server knows, the feedback judges the
// predictions made then, even if the input is sent too. With an unknown id or none, the models are
// asked again and their new predictions are judged. So the meaning of a message does not depend on
// the server that receives it.
func (g *Gate) OpenFeedback(r *Request) (Feedback, error) {
	if g.draining.Load() {
		return nil, ErrDraining
	}
	if err := r.Who.Check(access.Feedback, r.Model); err != nil {
		return nil, err
	}
	t := g.table(r.Who)
	if a := t.apps[r.Model]; a != nil {
		return a.Application.OpenFeedback(r)
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

// link adds the routes of applications.
func (g *Gate) link(t *Table) {
	t.apps = make(map[string]*Target)
	if g.applications == nil {
		return
	}
	for _, a := range g.applications.Link(g, t) {
		g.fanning.Store(true)
		a.Metrics = g.cfg.Metrics.Model(a.ID.Name, "")
		a.Metrics.SetSLO(a.Deadline)
		a.compose()
		t.apps[a.ID.Name] = a
		t.route(t.infer, a.ID.Name)
	}
}

// Counted returns the metrics that count the request: once, under the name that it was sent to. It
// is nil for a call that was not opened.
func (c *Call) Counted() *metrics.Model { return c.metrics }
