package apps

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// feedback implements gate.Feedback. It owns references to the right outputs, and a fanout if the
// models are asked again, both until Close.
type feedback struct {
	app     *application
	verdict verdict
	truth   []tensor.Tensor // the right outputs, if they are given as tensors
	user    string
	id      string // of the request that it judges; "" if it names none

	prediction *Prediction // what the models predicted then; or
	fanout     *fanout     // the models, again
	applied    bool        // the policy has learned it, for the first time; set before done

	done func(reply gate.Learned, err error)
}

// counted returns done wrapped to count the outcome of the feedback.
func (f *feedback) counted(done func(gate.Learned, error)) func(gate.Learned, error) {
	return func(reply gate.Learned, err error) {
		switch {
		case err != nil:
			f.app.target.Metrics.Taught(metrics.Failed)
		case f.applied:
			f.app.target.Metrics.Taught(metrics.Learned)
		default:
			f.app.target.Metrics.Taught(metrics.Repeated)
		}
		done(reply, err)
	}
}

// maxLearning bounds the feedback that waits for the store.
const maxLearning = 256

// learnTimeout bounds the write to the store.
const learnTimeout = 5 * time.Second

// OpenFeedback implements gate.Learner.
func (a *application) OpenFeedback(r *gate.Request, v *gate.Verdict) (gate.Feedback, error) {
	f, err := a.openFeedback(r, v)
	if err != nil {
		a.target.Metrics.Taught(metrics.Failed)
		return nil, err
	}
	return f, nil
}

func (a *application) openFeedback(r *gate.Request, v *gate.Verdict) (*feedback, error) {
	f := &feedback{app: a, user: r.User, id: canonical(r.ID)}
	var err error
	if f.verdict, err = verdictOf(v, r.Parameters); err != nil {
		return nil, err
	}
	input, truth := r.Inputs, []tensor.Tensor(nil)
	if f.verdict.given() == 0 {
		input, truth = nil, r.Inputs
	}
	without := len(input) == 0 && r.Texts == nil && r.Legacy == nil
	switch {
	case f.id == "" && without && len(truth) == 0:
		return nil, fault.Invalid("feedback for application %q: expected the \"id\" of a request, or its input as tensors or texts", a.Name)
	case f.id == "" && without:
		return nil, fault.Invalid(`feedback: expected one of "label", "loss", "reward", "losses" for that input, or the "id" of a request whose right outputs the tensors are`)
	case f.id != "" && r.Candidates != nil:
		return nil, fault.Invalid("feedback for application %q: %s is only for feedback that contains its input; feedback with an id concerns the models that the request went to",
			a.Name, parameter.CandidateModels)
	}
	if err := f.verdict.check(truth); err != nil {
		return nil, err
	}
	if f.id != "" {
		f.prediction = a.registry.Predictions.Find(a.Name, f.user, f.id, r.Arrived)
	}
	switch {
	case f.prediction != nil:
		f.truth = keep(truth)
	case without:
		return nil, fmt.Errorf("%w: feedback for application %q: this server knows no request with id %s of user %q in the last %v; send the input too, with a \"label\", or send the feedback to the server that answered the request",
			scheduler.ErrNotFound, a.Name, f.id, f.user, Lifetime)
	default:
		again := *r
		again.Inputs, again.ID = input, nil // the answers go to no client, and get no feedback
		if !r.Bridge {                      // the members name the input
			again.Parameters = nil
		}
		if f.fanout, err = a.fanOut(&again); err != nil {
			return nil, err
		}
		f.fanout.feedback = f
	}
	return f, nil
}

// canonical returns an id in the form used for comparison: all spellings of a JSON text ("a",
// "\u0061") are the same id at every door.
func canonical(id []byte) string {
	if bytes.IndexByte(id, '\\') < 0 {
		return string(id)
	}
	var text string
	if json.Unmarshal(id, &text) != nil {
		return string(id)
	}
	return string(jsonscan.AppendString(nil, text))
}

// Learn implements gate.Feedback.
func (f *feedback) Learn(done func(reply gate.Learned, err error)) {
	f.done = f.counted(done)
	if f.prediction != nil {
		f.learn(f.prediction.Predictions, f.prediction.Inputs())
		return
	}
	f.app.gate.Submit(f.fanout.Start(nil)...)
}

// complete learns from the predictions of a fan-out that was made for the feedback.
func (f *feedback) complete(asked *fanout, fault error) {
	if fault != nil {
		f.done(gate.Learned{}, fault)
		return
	}
	f.learn(asked.predictions(), asked.lessons())
}

// Cancel implements gate.Feedback.
func (f *feedback) Cancel() {
	if f.fanout != nil {
		f.fanout.Cancel()
	}
}

// Close implements gate.Feedback.
func (f *feedback) Close() {
	if f.fanout != nil {
		f.fanout.Close()
	}
	release(f.truth)
	f.truth = nil
}

// learn makes the policy learn the verdict on predictions. It uses a separate goroutine, as the
// store may be slow to reach. inputs are those of the models that want feedback themselves.
func (f *feedback) learn(predictions []selection.Prediction, inputs []Inputs) {
	r := f.app.registry
	select {
	case r.learning <- struct{}{}:
	default:
		f.done(gate.Learned{},
			fmt.Errorf("%w: %d requests with feedback, the limit, are already waiting for the state store",
				scheduler.ErrOverloaded, maxLearning))
		return
	}
	r.learners.Go(func() { // ends with the store's answer, or after learnTimeout
		defer func() { <-r.learning }()
		f.done(f.apply(predictions, inputs))
	})
}

// apply does learn's work and returns the reply.
func (f *feedback) apply(predictions []selection.Prediction, inputs []Inputs) (reply gate.Learned, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = f.app.panicked(r)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), learnTimeout)
	defer cancel()
	outcome, err := f.verdict.outcome(f.truth)
	if err != nil {
		return reply, err
	}
	r := f.app.registry
	linked := r.linking.Load()
	a := linked.apps[f.app.Name] // as it is now: it may have changed since the feedback was opened
	if a == nil {
		return reply, fmt.Errorf("%w: application %q was deleted before its feedback was learned",
			scheduler.ErrNotFound, f.app.Name)
	}
	state, applied, err := r.Learn(ctx, a.App, a.models, Judged{f.user, f.id, predictions, outcome})
	if err != nil {
		return reply, err
	}
	if f.applied = applied; applied {
		f.teach(linked.table, predictions, inputs)
	}
	return gate.Learned{Application: f.app.Name, Learned: applied, Rounds: state.Rounds}, nil
}
