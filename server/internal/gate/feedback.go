package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// A verdict is feedback on its way into the state of a policy.
type verdict struct {
	apps.Verdict
	truth []tensor.Tensor
	app   *application
	user  string
	id    string // of the request that it is about; "" for feedback that brings the input
	made  *apps.Prediction
}

// Learned is the answer to feedback.
type Learned struct {
	Application string `json:"application"`
	Learned     bool   `json:"learned"` // false: the same feedback was learned before
	Rounds      uint64 `json:"rounds"`  // feedbacks that the policy has learned from for this user
}

// maxLearning bounds the feedback that waits for the store.
const maxLearning = 256

// openFeedback makes a call of a message to "name/update". With the id of a request, the feedback is about what was said to that; tensors
// are then what would have been right. Without an id, or with one of which nothing is known here, tensors are the
// input: the models are asked, and what they say is judged.
func (g *Gate) openFeedback(c *Call, a *application, tensors []tensor.Tensor, p *Params) error {
	v := &verdict{app: a, user: p.User, id: string(p.ID)}
	if v.id != "" {
		v.made = g.apps.Predictions.Find(a.Name, v.user, v.id, p.Now)
	}
	var err error
	switch {
	case v.made != nil:
		v.truth = keep(tensors)
		if v.Verdict, err = apps.ParseVerdict(p.Forward, tensors); err != nil {
			release(v.truth)
			return err
		}
	case len(tensors) == 0:
		if v.id == "" {
			return fmt.Errorf("%w: feedback for application %q: expected the \"id\" of a request, or its input as tensors", scheduler.ErrInvalidInput, a.Name)
		}
		return fmt.Errorf("%w: feedback for application %q: this server knows no request with id %s of user %q in the last %v; send the input as tensors too, or ask the server that answered",
			scheduler.ErrNotFound, a.Name, v.id, v.user, apps.Lifetime)
	default:
		if v.Verdict, err = apps.ParseVerdict(p.Forward, nil); err != nil {
			return err
		}
		q := *p
		q.Forward = nil
		if err := g.openApplication(c, a, tensors, &q); err != nil {
			return err
		}
		c.fanout.verdict = v
		return nil
	}
	c.verdict = v
	c.Deadline = p.Now.Add(learnTimeout)
	return nil
}

// learnTimeout is what the store may take.
const learnTimeout = 5 * time.Second

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

// learn judges what the models have just said to feedback that brought its input.
func (f *fanout) learn() {
	c := f.call
	said := f.said(false)
	for _, t := range c.Outputs {
		t.Release()
	}
	c.Outputs = c.Outputs[:0]
	c.Choice = nil
	if c.Err != nil {
		c.Owner.Complete(&c.Request)
		return
	}
	f.alive.Add(1) // the outputs live until it is learned
	v := f.verdict
	f.gate.learn(c, v, f.app.models, said, func() { f.done() })
}

// startLearning judges what was said to an earlier request.
func (g *Gate) startLearning(c *Call) {
	v := c.verdict
	g.learn(c, v, v.made.Models, v.made.Said, func() { release(v.truth) })
}

// learn has the policy learn on a goroutine of its own, as the store may be far away, and completes the call.
func (g *Gate) learn(c *Call, v *verdict, models []selection.Model, said []selection.Prediction, done func()) {
	select {
	case g.learning <- struct{}{}:
	default:
		c.Err = fmt.Errorf("%w: %d feedbacks wait for the state store already", scheduler.ErrOverloaded, maxLearning)
		done()
		c.Owner.Complete(&c.Request)
		return
	}
	g.learners.Go(func() { // ends with the store's answer, or after learnTimeout
		defer func() { <-g.learning }()
		ctx, cancel := context.WithTimeout(context.Background(), learnTimeout)
		defer cancel()
		c.Err = nil
		outcome, err := v.Outcome(v.truth)
		if err == nil {
			var state selection.State
			var applied bool
			if state, applied, err = g.apps.Learn(ctx, v.app.App, v.user, v.id, models, said, outcome); err == nil {
				c.Reply, err = json.Marshal(Learned{v.app.Name, applied, state.Rounds})
			}
		}
		c.Err = err
		done()
		c.Owner.Complete(&c.Request)
	})
}
