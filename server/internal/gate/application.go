package gate

import (
	"context"
	"strings"

	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// Applications are the names that stand for several models. The gate has routes to them; what they
// make of a request is theirs.
type Applications interface {
	// Names are those of all applications, and whether they are known yet: the store may not have
	// been reached.
	Names() (names []string, known bool)

	// Link returns a target for each application, by the models of t. It is called whenever
	// models or applications change, one call at a time, and before t is in force.
	Link(g *Gate, t *Table) []*Target
}

// An Application stands behind a Target in the place of a model. Its methods are called from any
// goroutine.
type Application interface {
	// Open makes calls to models of a question, and sets Target, Rows, Deadline, Squeeze, Bridge
	// and Fanout of c, which is open then; or it leaves c as it was.
	Open(c *Call, tensors []tensor.Tensor, p *Params) error

	// OpenFeedback reads what a client says of an answer.
	OpenFeedback(tensors []tensor.Tensor, p *Params) (Feedback, error)

	// Unlinked is the error of an application that has no model to ask; nil: it has some.
	Unlinked() error

	Status() ApplicationStatus
}

// An ApplicationStatus is an application as "!models" shows it.
type ApplicationStatus struct {
	Name   string   `json:"name"`
	Policy string   `json:"policy"`
	Ready  bool     `json:"ready"`  // a live replica serves one of its models
	Models []string `json:"models"` // those that it may ask now, "name/version"
	Links  []string `json:"-"`      // of its definition
}

// A Fanout is what an application makes of a call: the calls to its models. It is the call's, from
// Open to Close.
type Fanout interface {
	// Start appends the calls to submit in the place of the call, which the fanout completes, by
	// Finish; maybe now.
	Start(calls []*Call) []*Call

	// Cancel gives the calls up.
	Cancel()

	// Close ends the call's use of the fanout, and of what the call's outputs refer to.
	Close()

	// Voices is how many models' answers there are until Close.
	Voices() int
}

// Feedback judges an answer of an application, and is on its way into the state of a policy.
//
// It is its door's until Learn, and again from done on; in between the door may only cancel it. The
// tensors that it was opened with, and their memory, and the slices of its Params must stay as they
// are until Close.
type Feedback interface {
	// Learn has the policy learn, once. done is called exactly once, as an Owner's Complete is:
	// from any goroutine, perhaps before Learn returns, and it must not block. reply is a Learned
	// as JSON.
	Learn(done func(reply []byte, err error))

	// Cancel gives the models that are asked up: the client has gone. What is being learned is
	// learned, and done is still called.
	Cancel()

	// Close releases what the feedback holds. It is called once, after done or in place of Learn.
	Close()
}

// Learned is the answer to feedback.
type Learned struct {
	Application string `json:"application"`
	Learned     bool   `json:"learned"` // false: the same feedback was learned before
	Rounds      uint64 `json:"rounds"`  // feedbacks that the policy has learned from for this user
}

// Learn has the policy learn, and returns when it has; when ctx ends first, the models that are
// asked are given up.
func Learn(ctx context.Context, f Feedback) (reply []byte, err error) {
	done := make(chan struct{})
	f.Learn(func(r []byte, e error) {
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

// Updates returns the application that feedback sent to a route is about: that of "name/update".
func (v View) Updates(route string) (application string, ok bool) {
	t := v.table()
	if len(t.apps) == 0 {
		return "", false
	}
	name, ok := strings.CutSuffix(route, "/update")
	return name, ok && t.apps[name] != nil
}

// OpenFeedback reads feedback for an application. Tensors that come with a verdict in the metadata
// are the input; tensors without one are the right outputs, and need the id of a request.
// With the id of a request that this server knows, the feedback is about the predictions of then,
// even if the input is there too; with another id, or none, the models are asked, and their new
// predictions are judged. So what a message means does not depend on the server that gets it.
func (g *Gate) OpenFeedback(name string, tensors []tensor.Tensor, p *Params) (Feedback, error) {
	if g.draining.Load() {
		return nil, ErrDraining
	}
	if err := p.Who.Check(identity.Feedback, name); err != nil {
		return nil, err
	}
	t := g.table(p.Who)
	if a := t.apps[name]; a != nil {
		return a.Application.OpenFeedback(tensors, p)
	}
	return nil, t.unknown(name+"/update", shivaWords)
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
func (c *Choice) Absent() string {
	return join(c.Missing, func(m Missing) string { return m.Model }, ", ")
}

// Because is why they are missing, in one text.
func (c *Choice) Because() string {
	return join(c.Missing, func(m Missing) string { return m.Model + ": " + m.Why }, "; ")
}

// link gives the applications the routes of their names.
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

// Counted is what the request is counted with: once, by the name that it was sent to. Nil for what
// was not opened.
func (c *Call) Counted() *metrics.Model { return c.counted }
