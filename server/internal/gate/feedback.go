package gate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Feedback is what somebody says of an application's answer, on its way into the state of a policy.
//
// It is its door's until Learn, and again from done on; in between the door may only cancel it. The
// tensors that it was opened with, and their memory, must stay as they are until Close, and the
// Params' slices too: it has references of its own to what would have been right, and lets go of
// all by Close.
type Feedback struct {
	gate    *Gate
	app     *application
	verdict apps.Verdict
	truth   []tensor.Tensor // what would have been right, if it came as tensors
	user    string
	id      string           // of the request that it is about; "" if it names none
	earlier *apps.Prediction // what was said to that; nil: the models are asked again

	asking Call // of these
	done   func(reply []byte, err error)
}

// Learned is the answer to feedback.
type Learned struct {
	Application string `json:"application"`
	Learned     bool   `json:"learned"` // false: the same feedback was learned before
	Rounds      uint64 `json:"rounds"`  // feedbacks that the policy has learned from for this user
}

// maxLearning bounds the feedback that waits for the store.
const maxLearning = 256

// learnTimeout is what the store may take.
const learnTimeout = 5 * time.Second

// Updates returns the application that feedback sent to a route is about: that of "name/update".
func (g *Gate) Updates(route string) (application string, ok bool) {
	t := g.routes.Load()
	if len(t.apps) == 0 {
		return "", false
	}
	name, ok := strings.CutSuffix(route, "/update")
	return name, ok && t.apps[name] != nil
}

// OpenFeedback reads feedback for an application. Tensors that come with a verdict in the metadata
// are the input; tensors without one are what would have been right, and need the id of a request.
// With an id of which something is known here the feedback is about what was said to that, also if
// the input came too; with another one, or none, the models are asked, and what they say is judged.
// So what a message means does not depend on the server that gets it.
func (g *Gate) OpenFeedback(name string, tensors []tensor.Tensor, p *Params) (*Feedback, error) {
	if g.draining.Load() {
		return nil, errDraining
	}
	a := g.routes.Load().apps[name]
	if a == nil {
		return nil, g.routes.Load().unknown(name+"/update", shivaWords)
	}
	f := &Feedback{gate: g, app: a, user: p.User, id: canonical(p.ID)}
	var err error
	if f.verdict, err = apps.ReadVerdict(p.Forward); err != nil {
		return nil, err
	}
	input, truth := tensors, []tensor.Tensor(nil)
	if f.verdict.Given() == 0 {
		input, truth = nil, tensors
	}
	without := len(input) == 0 && p.Texts == nil && p.Inputs == nil
	switch {
	case f.id == "" && without && len(truth) == 0:
		return nil, fmt.Errorf("%w: feedback for application %q: expected the \"id\" of a request, or its input as tensors or texts", scheduler.ErrInvalidInput, a.Name)
	case f.id == "" && without:
		return nil, fmt.Errorf(`%w: feedback: expected one of "label", "loss", "reward", "losses" for that input, or the "id" of a request that the tensors are the right outputs of`, scheduler.ErrInvalidInput)
	case f.id != "" && p.Candidates != nil:
		return nil, fmt.Errorf("%w: feedback for application %q: %s is for feedback that brings its input; with an id it is about the models that were asked then",
			scheduler.ErrInvalidInput, a.Name, parameter.CandidateModels)
	}
	if err := f.verdict.Check(truth); err != nil {
		return nil, err
	}
	if f.id != "" {
		f.earlier = g.apps.Predictions.Find(a.Name, f.user, f.id, p.Now)
	}
	switch {
	case f.earlier != nil:
		f.truth = keep(truth)
	case without:
		return nil, fmt.Errorf("%w: feedback for application %q: this server knows no request with id %s of user %q in the last %v; send the input too, with a \"label\", or ask the server that answered",
			scheduler.ErrNotFound, a.Name, f.id, f.user, apps.Lifetime)
	default:
		q := *p
		q.ID = nil     // what is said now is no answer to anybody
		if !p.Bridge { // its members name the input
			q.Forward = nil
		}
		if err := g.openApplication(&f.asking, a, input, &q); err != nil {
			return nil, err
		}
		f.asking.Owner, f.asking.fanout.lesson = f, true
	}
	return f, nil
}

// canonical is an id as it is compared: a JSON text in one of its many forms ("a", "\u0061") is one
// id, whatever door and client it came by.
func canonical(id []byte) string {
	if bytes.IndexByte(id, '\\') < 0 {
		return string(id)
	}
	var text string
	if json.Unmarshal(id, &text) != nil {
		return string(id)
	}
	return string(shiva.AppendString(nil, text))
}

// Learn has the policy learn, once. done is called exactly once, as an Owner's Complete is: from
// any goroutine, perhaps before Learn returns, and it must not block. reply is a JSON object.
func (f *Feedback) Learn(done func(reply []byte, err error)) {
	f.done = done
	if f.earlier != nil {
		f.learn(f.earlier.Said, f.earlier.Inputs())
		return
	}
	f.gate.Submit(&f.asking)
}

// Wait has the policy learn, and returns when it has; when ctx ends first, the models that are
// asked are given up.
func (f *Feedback) Wait(ctx context.Context) (reply []byte, err error) {
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

// Cancel gives the models that are asked up: the client has gone. What is being learned is learned,
// and done is still called.
func (f *Feedback) Cancel() {
	if f.earlier == nil {
		f.gate.Cancel(&f.asking)
	}
}

// Close releases what the feedback holds. It is called once, after done or in place of Learn.
func (f *Feedback) Close() {
	f.asking.Close()
	release(f.truth)
	f.truth = nil
}

// Complete has the policy learn from what the models have just said.
func (f *Feedback) Complete(c *Call) {
	if c.Err != nil {
		f.done(nil, c.Err)
		return
	}
	f.learn(c.fanout.predictions(false), c.fanout.inputs)
}

// learn has the policy learn what the verdict says of what models predicted. The store may be
// far away, so that is on a goroutine of its own. inputs are those of the models that want to
// learn by themselves.
func (f *Feedback) learn(said []selection.Prediction, inputs []apps.Inputs) {
	g := f.gate
	select {
	case g.learning <- struct{}{}:
	default:
		f.done(nil, fmt.Errorf("%w: %d feedbacks wait for the state store already", scheduler.ErrOverloaded, maxLearning))
		return
	}
	g.learners.Go(func() { // ends with the store's answer, or after learnTimeout
		defer func() { <-g.learning }()
		f.done(f.apply(said, inputs))
	})
}

// apply is learn's answer.
func (f *Feedback) apply(said []selection.Prediction, inputs []apps.Inputs) (reply []byte, err error) {
	g := f.gate
	defer func() {
		if r := recover(); r != nil {
			reply, err = nil, g.panicked(f.app.Name, r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), learnTimeout)
	defer cancel()
	outcome, err := f.verdict.Outcome(f.truth)
	if err != nil {
		return nil, err
	}
	a := g.routes.Load().apps[f.app.Name] // as it is now: it may have changed since the feedback came
	if a == nil {
		return nil, fmt.Errorf("%w: application %q was deleted before its feedback was learned", scheduler.ErrNotFound, f.app.Name)
	}
	state, applied, err := g.apps.Learn(ctx, a.App, f.user, f.id, a.models, said, outcome)
	if err != nil {
		return nil, err
	}
	if applied {
		g.teach(f, said, inputs)
	}
	return json.Marshal(Learned{f.app.Name, applied, state.Rounds})
}
