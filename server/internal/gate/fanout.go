package gate

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// opened is implemented by Call, and so by what embeds one.
type opened interface{ opened() *Call }

func (c *Call) opened() *Call { return c }

// fanOut puts the calls to models in the place of those to applications.
func (g *Gate) fanOut(requests []*scheduler.Request) []*scheduler.Request {
	if !slices.ContainsFunc(requests, func(r *scheduler.Request) bool { return outer(r) != nil }) {
		return requests
	}
	rest := make([]*scheduler.Request, 0, 2*len(requests))
	for _, r := range requests {
		switch c := outer(r); {
		case c == nil:
			rest = append(rest, r)
		case c.verdict != nil:
			g.startLearning(c)
		default:
			rest = c.fanout.start(rest)
		}
	}
	return rest
}

// outer is the call of a request that is not itself for the scheduler; nil for the others.
func outer(r *scheduler.Request) *Call {
	if o, ok := r.Owner.(opened); ok {
		if c := o.opened(); c.fanout != nil || c.verdict != nil {
			return c
		}
	}
	return nil
}

// A fanout is a request to an application while its models are asked: one call for each, and the outer one, which is complete when all
// that are to answer have. They all have its deadline, by which the scheduler ends them, so that the answer needs no timer of
// its own.
type fanout struct {
	// Set before the calls are submitted.
	gate    *Gate
	app     *application
	call    *Call // the outer one
	user    string
	id      string // "" = nobody will give feedback
	began   time.Time
	state   selection.State
	asks    []*ask
	missing []selection.Ask // that could not be asked
	verdict *verdict        // nil, or the request is feedback that brought its input

	started bool         // its calls were submitted
	waiting atomic.Int32 // calls that are to answer
	alive   atomic.Int32 // calls that are not complete, and whoever else needs them; 0: they are closed
}

// An ask is the call to one model.
type ask struct {
	Call
	selection.Ask
	of *fanout
}

// ask opens a call to one model.
func (f *fanout) ask(asked selection.Ask, target *Target, tensors []tensor.Tensor, p *Params) error {
	a := &ask{Ask: asked, of: f}
	if asked.Shadow {
		// Nobody waits for it, so the door's memory may be gone before it is done.
		tensors = keep(tensors)
		p.Forward = slices.Clone(p.Forward)
	}
	err := f.gate.OpenTarget(&a.Call, target, tensors, p)
	if asked.Shadow {
		if err != nil {
			release(tensors)
		} else {
			a.owned = append(a.owned, tensors...)
		}
	}
	if err != nil {
		return err
	}
	a.Owner = a
	f.asks = append(f.asks, a)
	return nil
}

// keep makes tensors that outlive their message: counted memory is retained, all else copied.
func keep(tensors []tensor.Tensor) []tensor.Tensor {
	kept := make([]tensor.Tensor, len(tensors))
	for i, t := range tensors {
		t.Shape = slices.Clone(t.Shape)
		t.Name = strings.Clone(t.Name)
		if t.Buf != nil {
			t.Retain()
		} else {
			t.Data = slices.Clone(t.Data)
		}
		kept[i] = t
	}
	return kept
}

func release(tensors []tensor.Tensor) {
	for _, t := range tensors {
		t.Release()
	}
}

// start gives the requests of the calls to submit.
func (f *fanout) start(requests []*scheduler.Request) []*scheduler.Request {
	f.started = true
	f.alive.Store(int32(len(f.asks)) + 1)
	for _, a := range f.asks {
		if !a.Shadow {
			f.waiting.Add(1)
		}
	}
	for _, a := range f.asks {
		requests = append(requests, &a.Request)
	}
	return requests
}

// Complete is the scheduler's last word on one model's call.
func (a *ask) Complete(*scheduler.Request) {
	f := a.of
	if !a.Shadow && f.waiting.Add(-1) == 0 {
		f.finish()
		f.done()
	}
	f.done()
}

// done counts a call that is complete, and the answer when it has been given. When nobody needs the calls any more their memory goes back.
func (f *fanout) done() {
	if f.alive.Add(-1) > 0 {
		return
	}
	if slices.ContainsFunc(f.asks, func(a *ask) bool { return a.Shadow }) {
		f.remember(true)
	}
	f.close()
}

func (f *fanout) close() {
	for _, a := range f.asks {
		a.Close()
	}
}

// said lists what the models said, those that did not with no outputs; shadows only when they are complete, as all are at the end.
func (f *fanout) said(shadows bool) []selection.Prediction {
	said := make([]selection.Prediction, 0, len(f.asks))
	for _, a := range f.asks {
		if a.Shadow && !shadows {
			continue
		}
		p := selection.Prediction{Ask: a.Ask}
		if a.Err == nil {
			p.Outputs = slices.Clone(a.Outputs)
			for i := range p.Outputs {
				p.Outputs[i].Name = a.Target.Spec.Outputs[i].Name
			}
		}
		said = append(said, p)
	}
	return said
}

// finish answers the outer call with what has come.
func (f *fanout) finish() {
	c := f.call
	var came []selection.Prediction
	missing := f.missing
	for _, p := range f.said(false) {
		if p.Outputs != nil {
			came = append(came, p)
		} else {
			missing = append(missing, p.Ask)
		}
	}
	c.Err = nil
	c.Outputs = c.Outputs[:0]
	c.Choice = &Choice{Application: f.app.Name}
	for _, a := range f.asks {
		if !a.Shadow && a.Timing.Queue+a.Timing.Exec >= c.Timing.Queue+c.Timing.Exec {
			c.Timing = a.Timing
		}
	}
	answer := f.app.Selection.Combine(f.state, came, missing)
	c.Choice.Confidence = answer.Confidence
	for _, v := range answer.Voices {
		if v.Unheard != "" && !v.Shadow {
			c.Choice.Missing = append(c.Choice.Missing, v.Model.String())
		}
	}
	switch {
	case answer.Outputs != nil:
		f.speaker(answer)
		for _, t := range answer.Outputs {
			t.Retain()
			t.Shape = slices.Clone(t.Shape) // the model's call may be reused before the answer is read
			c.Outputs = append(c.Outputs, t)
		}
	default:
		f.fallBack()
	}
	if f.verdict != nil {
		f.learn()
		return
	}
	f.remember(false)
	c.Owner.Complete(&c.Request)
}

// speaker makes the target of the outer call that of the model which is most behind the answer: it is named in the answer.
func (f *fanout) speaker(answer selection.Answer) {
	best := -1.0
	for _, v := range answer.Voices {
		if part := v.Weight * v.Agreement; v.Unheard == "" && !v.Shadow && part > best {
			if t := f.app.target(v.Model); t != nil {
				best, f.call.Target = part, t
			}
		}
	}
}

// fallBack answers with the application's default if it has one, and with the error of the first model if not.
func (f *fanout) fallBack() {
	c, first := f.call, f.asks[0]
	for _, a := range f.asks {
		if !a.Shadow {
			first = a
			break
		}
	}
	err := first.Err
	if err == nil {
		err = fmt.Errorf("%w: application %q: what its models said cannot be combined", scheduler.ErrContainerFailed, f.app.Name)
	}
	c.Err = err
	if f.verdict != nil || !f.app.HasDefault() || StatusOf(err).Outcome == StatusOf(scheduler.ErrCanceled).Outcome {
		return
	}
	spec := first.Target.Spec
	outputs, fault := f.app.DefaultOutput(spec.Outputs, first.Rows, spec.Batched())
	if fault != nil {
		c.Err = fmt.Errorf("%w; and %w", err, fault)
		return
	}
	c.Err, c.Outputs = nil, append(c.Outputs, outputs...)
	c.Choice.Default = true
	c.Choice.Explanation = fmt.Sprintf("%s (%s)", Text(err), first.stage(time.Since(f.began)))
}

// stage says where the time of a call without a result went.
func (a *ask) stage(total time.Duration) string {
	if a.Timing.Exec > 0 {
		return fmt.Sprintf("%v in the queue, %v in the container", a.Timing.Queue.Round(time.Microsecond), a.Timing.Exec.Round(time.Microsecond))
	}
	return fmt.Sprintf("%v, none of it in a container", total.Round(time.Microsecond))
}

// remember keeps what was said for feedback: before the answer, and with what the shadows said when they have.
func (f *fanout) remember(shadows bool) {
	if f.id == "" || f.verdict != nil {
		return
	}
	said := f.said(shadows)
	for _, m := range f.missing {
		said = append(said, selection.Prediction{Ask: m})
	}
	f.gate.apps.Predictions.Keep(f.app.Name, f.user, f.id, f.began, f.app.models, said)
}

// cancel gives all calls up.
func (f *fanout) cancel() {
	for {
		n := f.alive.Load()
		if n == 0 {
			return // all are complete, and may be closed
		}
		if f.alive.CompareAndSwap(n, n+1) {
			break
		}
	}
	for _, a := range f.asks {
		f.gate.Cancel(&a.Call)
	}
	f.done()
}
