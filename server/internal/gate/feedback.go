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
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A verdict is feedback on its way into the state of a policy.
type verdict struct {
	apps.Verdict
	truth []tensor.Tensor // what would have been right, if it came as tensors; the verdict's own references
	app   *application
	user  string
	id    string           // of the request that it is about; "" if it names none
	made  *apps.Prediction // what was said to that; nil: the feedback brought the input
}

// Learned is the answer to feedback.
type Learned struct {
	Application string `json:"application"`
	Learned     bool   `json:"learned"` // false: the same feedback was learned before
	Rounds      uint64 `json:"rounds"`  // feedbacks that the policy has learned from for this user
}

// maxLearning bounds the feedback that waits for the store.
const maxLearning = 256

// openFeedback makes a call of a message to "name/update". Tensors that come with a verdict in the metadata are the input;
// tensors without one are what would have been right, and need the id of a request. With an id of which something is
// known here the feedback is about what was said to that, also if the input came too; with another one, or none, the models
// are asked, and what they say is judged. So what a message means does not depend on the server that gets it.
func (g *Gate) openFeedback(c *Call, a *application, tensors []tensor.Tensor, p *Params) error {
	v := &verdict{app: a, user: p.User, id: canonical(p.ID)}
	var err error
	if v.Verdict, err = apps.ReadVerdict(p.Forward); err != nil {
		return err
	}
	input, truth := tensors, []tensor.Tensor(nil)
	if v.Given() == 0 {
		input, truth = nil, tensors
	}
	without := len(input) == 0 && p.Texts == nil && p.Inputs == nil
	switch {
	case v.id == "" && without && len(truth) == 0:
		return fmt.Errorf("%w: feedback for application %q: expected the \"id\" of a request, or its input as tensors or texts", scheduler.ErrInvalidInput, a.Name)
	case v.id == "" && without:
		return fmt.Errorf(`%w: feedback: expected one of "label", "loss", "reward", "losses" for that input, or the "id" of a request that the tensors are the right outputs of`, scheduler.ErrInvalidInput)
	case v.id != "" && p.Choose != nil:
		return fmt.Errorf("%w: feedback for application %q: %s is for feedback that brings its input; with an id it is about the models that were asked then",
			scheduler.ErrInvalidInput, a.Name, CandidatesKey)
	}
	if err := v.Check(truth); err != nil {
		return err
	}
	if v.id != "" {
		v.made = g.apps.Predictions.Find(a.Name, v.user, v.id, p.Now)
	}
	switch {
	case v.made != nil:
		v.truth = keep(truth)
	case without:
		return fmt.Errorf("%w: feedback for application %q: this server knows no request with id %s of user %q in the last %v; send the input too, with a \"label\", or ask the server that answered",
			scheduler.ErrNotFound, a.Name, v.id, v.user, apps.Lifetime)
	default:
		q := *p
		if !p.Bridge { // its members name the input
			q.Forward = nil
		}
		if err := g.openApplication(c, a, input, &q); err != nil {
			return err
		}
	}
	c.verdict = v
	return nil
}

// learnTimeout is what the store may take.
const learnTimeout = 5 * time.Second

// canonical is an id as it is compared: a JSON text in one of its many forms ("a", "\u0061") is one id, whatever door and client it came by.
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

// updated gives the application that "name/update" is about; nil if route is no such.
func (t *table) updated(route string) *application {
	if len(t.apps) == 0 {
		return nil
	}
	name, ok := strings.CutSuffix(route, "/update")
	if !ok {
		return nil
	}
	return t.apps[name]
}

// judge has the policy learn from what the models have just said to feedback that brought its input.
func (f *fanout) judge() {
	c := f.call
	for _, t := range c.Outputs {
		t.Release()
	}
	c.Outputs, c.Choice = c.Outputs[:0], nil
	if c.Err != nil {
		c.Owner.Complete(&c.Request)
		return
	}
	f.gate.learn(c, f.said(false), f.inputs)
}

// learn has the policy learn what c's verdict says of what models said, and completes c. The store may be far away, so that is on a
// goroutine of its own. inputs are those of the models that want to learn by themselves.
func (g *Gate) learn(c *Call, said []selection.Prediction, inputs []apps.Inputs) {
	select {
	case g.learning <- struct{}{}:
	default:
		c.Err = fmt.Errorf("%w: %d feedbacks wait for the state store already", scheduler.ErrOverloaded, maxLearning)
		c.Owner.Complete(&c.Request)
		return
	}
	g.learners.Go(func() { // ends with the store's answer, or after learnTimeout
		defer func() { <-g.learning }()
		c.Reply, c.Err = g.learned(c.verdict, said, inputs)
		c.Owner.Complete(&c.Request)
	})
}

// learned is learn's answer.
func (g *Gate) learned(v *verdict, said []selection.Prediction, inputs []apps.Inputs) (reply []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			reply, err = nil, g.panicked(v.app.Name, r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), learnTimeout)
	defer cancel()
	outcome, err := v.Outcome(v.truth)
	if err != nil {
		return nil, err
	}
	a := g.routes.Load().apps[v.app.Name] // as it is now: it may have changed since the feedback came
	if a == nil {
		return nil, fmt.Errorf("%w: application %q was deleted before its feedback was learned", scheduler.ErrNotFound, v.app.Name)
	}
	state, applied, err := g.apps.Learn(ctx, a.App, v.user, v.id, a.models, said, outcome)
	if err != nil {
		return nil, err
	}
	if applied {
		g.teach(v, said, inputs)
	}
	return json.Marshal(Learned{v.app.Name, applied, state.Rounds})
}
