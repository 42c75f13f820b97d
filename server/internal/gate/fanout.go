package gate

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// A fanout is a request to an application while its models are asked: one call for each, and the
// outer one, which is complete when all that are to answer have. They all have its deadline, by
// which the scheduler ends them, so that the answer needs no timer of its own.
//
// It owns its calls, and what they hold, until nobody refers to it; then it and they are used
// again. The outer call refers to it until it is closed, which is after all that are to answer are
// complete, and each shadow until that is complete, which may be later. So what an answer refers to
// is there as long as the answer. The outer call itself is its door's again when it is complete:
// after that the fanout must not touch it. With -tags invariants a reference too few panics.
type fanout struct {
	// Set before the calls are submitted.
	gate    *Gate
	app     *application
	call    *Call // the outer one; not to be touched once it is complete
	lesson  bool  // it is feedback that asks: nothing is counted, no default stands in, and what was asked is copied
	user    string
	id      string // "" = nobody will give feedback
	began   time.Time
	state   selection.State
	asks    []ask // never moved
	refused []refusal

	waiting atomic.Int32 // calls that are to answer and are not complete
	untold  atomic.Int32 // shadows that are not complete, and 1 until the outer call is: whoever makes it 0 knows all that was said
	refs    atomic.Int32 // as above; 0: the calls are closed

	choice Choice        // set by finish
	inputs []apps.Inputs // likewise: of the models that want feedback, if there may be any

	params  Params // memory for these
	answers []selection.Prediction
	missing []selection.Ask
}

// An ask is the call to one model. Its fanout owns it.
type ask struct {
	call  Call
	asked selection.Ask
	of    *fanout
}

// A refusal is a model that is not asked after all.
type refusal struct {
	asked selection.Ask
	why   error
}

var fanouts = sync.Pool{New: func() any { return new(fanout) }}

// newFanout makes room for so many calls. The outer call refers to it.
func newFanout(calls int) *fanout {
	f := fanouts.Get().(*fanout)
	f.asks = slices.Grow(f.asks, calls)
	f.refs.Store(1)
	f.untold.Store(1)
	return f
}

// ask opens a call to one model, or notes why that cannot be asked.
func (f *fanout) ask(asked selection.Ask, target *Target, tensors []tensor.Tensor, p *Params) {
	f.asks = f.asks[:len(f.asks)+1]
	a := &f.asks[len(f.asks)-1]
	a.asked, a.of = asked, f
	var err error
	if asked.Shadow {
		err = a.openShadow(target, tensors, p)
	} else {
		err = f.gate.OpenTarget(&a.call, target, tensors, p)
	}
	if err != nil {
		f.asks = f.asks[:len(f.asks)-1]
		f.refused = append(f.refused, refusal{asked, err})
		return
	}
	a.call.Owner = a
	if asked.Shadow {
		f.untold.Add(1)
	} else {
		f.waiting.Add(1)
	}
}

// openShadow is OpenTarget for a call that nobody waits for: the door's memory may be gone before
// it is done.
func (a *ask) openShadow(target *Target, tensors []tensor.Tensor, p *Params) error {
	own := *p
	own.Forward = slices.Clone(p.Forward)
	tensors = keep(tensors)
	if err := a.of.gate.OpenTarget(&a.call, target, tensors, &own); err != nil {
		release(tensors)
		return err
	}
	a.call.owned = append(a.call.owned, tensors...)
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

// start appends the calls to submit.
func (f *fanout) start(calls []*Call) []*Call {
	f.refs.Add(f.untold.Load() - 1)
	for i := range f.asks {
		calls = append(calls, &f.asks[i].call)
	}
	return calls
}

// Complete is the last word on one model's call.
func (a *ask) Complete(*Call) {
	f := a.of
	switch {
	case a.asked.Shadow:
		f.tell()
		f.done()
	case f.waiting.Add(-1) == 0:
		f.finish(a)
	}
}

// tell remembers what was said if this was the last to say something.
func (f *fanout) tell() {
	if f.untold.Add(-1) == 0 {
		f.remember(true)
	}
}

// done gives a reference back. When there is none left the memory of the calls goes back, and the
// fanout may be another request's.
func (f *fanout) done() {
	left := f.refs.Add(-1)
	if tensor.Invariants && left < 0 {
		panic("gate: a fanout has been given back more often than it was referred to")
	}
	if left > 0 {
		return
	}
	for i := range f.asks {
		a := &f.asks[i]
		a.call.Close()
		a.asked, a.of = selection.Ask{}, nil
	}
	clear(f.refused)
	clear(f.answers[:cap(f.answers)])
	clear(f.missing[:cap(f.missing)])
	f.asks, f.refused, f.answers, f.missing = f.asks[:0], f.refused[:0], f.answers[:0], f.missing[:0]
	f.gate, f.app, f.call, f.lesson, f.user, f.id, f.state = nil, nil, nil, false, "", "", selection.State{}
	f.choice, f.inputs = Choice{}, nil
	f.waiting.Store(0)
	fanouts.Put(f)
}

// cancel gives all calls up. The outer one is not closed yet, so they are still its.
func (f *fanout) cancel() {
	for i := range f.asks {
		f.gate.Cancel(&f.asks[i].call)
	}
}

// prediction is what a model predicted, with no outputs if it did not. It refers to the call's
// memory.
func (a *ask) prediction() selection.Prediction {
	p, c := selection.Prediction{Ask: a.asked}, &a.call
	if c.Err == nil {
		for i := range c.Outputs { // as many as declared: the scheduler has looked
			c.Outputs[i].Name = c.Target.Spec.Outputs[i].Name
		}
		p.Outputs = c.Outputs
	}
	return p
}

// predictions lists what the models predicted; shadows only when they are complete.
func (f *fanout) predictions(shadows bool) []selection.Prediction {
	list := make([]selection.Prediction, 0, len(f.asks)+len(f.refused))
	for i := range f.asks {
		if a := &f.asks[i]; shadows || !a.asked.Shadow {
			list = append(list, a.prediction())
		}
	}
	for _, r := range f.refused {
		list = append(list, selection.Prediction{Ask: r.asked})
	}
	return list
}

// finish answers the outer call with what has arrived; last is the call that was complete last of
// those that are to answer.
func (f *fanout) finish(last *ask) {
	c := f.call
	c.Err = nil
	c.Outputs = c.Outputs[:0]
	c.Alone = last.call.Alone
	f.choice.Application = f.app.Name
	c.Choice = &f.choice
	for i := range f.asks {
		if a := &f.asks[i]; !a.asked.Shadow && a.call.Timing.Queue+a.call.Timing.Exec >= c.Timing.Queue+c.Timing.Exec {
			c.Timing = a.call.Timing
		}
	}
	if fault := f.combine(); fault != nil {
		f.fallBack(fault)
	}
	if f.lesson || f.id != "" {
		f.inputs = f.lessons()
	}
	if f.untold.Load() > 1 { // shadows are still at it, and feedback may come before they are done
		f.remember(false)
	}
	f.tell()
	c.end()
}

// combine makes the answer of what has arrived, or tells why there is none. It runs on whatever
// goroutine completed the last call, often that of a container's session: a panic over what one
// model said is the answer to this request, and nobody else's trouble.
func (f *fanout) combine() (fault error) {
	defer func() {
		if r := recover(); r != nil {
			fault = f.gate.panicked(f.app.Name, r)
		}
	}()
	c := f.call
	var first error // of the heaviest model that said nothing
	for i := range f.asks {
		a := &f.asks[i]
		if a.asked.Shadow {
			continue
		}
		if a.call.Err == nil {
			f.answers = append(f.answers, a.prediction())
			continue
		}
		if first == nil {
			first = a.call.Err
		}
		f.missing = append(f.missing, a.asked)
	}
	for _, r := range f.refused {
		f.missing = append(f.missing, r.asked)
	}
	answer := f.app.Selection.Combine(f.state, f.answers, f.missing)
	f.choice.Confidence = answer.Confidence
	for _, v := range answer.Voices {
		if v.Unheard != "" && !v.Shadow {
			f.choice.Missing = append(f.choice.Missing, Missing{v.Model.String(), f.why(v)})
			if t := f.app.target(v.Model); t != nil && !f.lesson {
				t.Metrics.Unheard()
			}
		}
	}
	if f.choice.Missing != nil && !f.lesson {
		f.app.metrics.Unheard()
	}
	if answer.Outputs == nil {
		if first == nil {
			first = fmt.Errorf("%w: application %q: what its models said cannot be combined: %s", scheduler.ErrContainerFailed, f.app.Name, answer)
		}
		return first
	}
	speaker := f.speaker(answer)
	c.Target, c.Squeeze, c.Rows = speaker.call.Target, speaker.call.Squeeze, speaker.call.Rows
	for _, t := range answer.Outputs {
		t.Retain()
		c.Outputs = append(c.Outputs, t)
	}
	return nil
}

// why says why a model was not heard.
func (f *fanout) why(v selection.Voice) string {
	for i := range f.asks {
		if a := &f.asks[i]; a.asked.Model == v.Model && a.call.Err != nil {
			return Text(a.call.Err)
		}
	}
	for _, r := range f.refused {
		if r.asked.Model == v.Model {
			return Text(r.why)
		}
	}
	return v.Unheard
}

// speaker is the call of the model which is most behind the answer: that model is named in it, and
// the rows are as it counted them.
func (f *fanout) speaker(answer selection.Answer) *ask {
	speaker, best := f.firstToAnswer(), -1.0
	for _, v := range answer.Voices {
		part := v.Weight * v.Agreement
		if v.Unheard != "" || v.Shadow || !(part > best) {
			continue
		}
		for i := range f.asks {
			if a := &f.asks[i]; a.asked.Model == v.Model {
				speaker, best = a, part
			}
		}
	}
	return speaker
}

// firstToAnswer is the call of the heaviest model that was asked for the answer. There is one.
func (f *fanout) firstToAnswer() *ask {
	i := 0
	for f.asks[i].asked.Shadow {
		i++
	}
	return &f.asks[i]
}

// fallBack answers with the application's default if it has one and there was nothing better, and
// with the fault if not.
func (f *fanout) fallBack(fault error) {
	c, first := f.call, &f.firstToAnswer().call
	c.Target, c.Squeeze, c.Rows = first.Target, first.Squeeze, first.Rows
	for _, t := range c.Outputs { // of an answer that went wrong half-way
		t.Release()
	}
	c.Err, c.Outputs = fault, c.Outputs[:0]
	if f.lesson || !f.app.HasDefault() || !replaceable(fault) {
		return
	}
	outputs, odd := f.app.DefaultOutput(&first.Target.Spec, first.Rows, f.gate.pool)
	if odd != nil {
		c.Err = fmt.Errorf("%w; and %w", fault, odd)
		return
	}
	c.Err, c.Outputs = nil, append(c.Outputs, outputs...)
	f.choice.Default = true
	f.choice.Explanation = fmt.Sprintf("%s (%s)", Text(fault), stage(first.Timing, time.Since(f.began)))
}

// replaceable reports whether an error is one that a default output stands in for: the models could
// not answer, or not in time. A request that is at fault itself, or whose client has gone, or which
// another server should get, has no answer but the error.
func replaceable(err error) bool {
	switch StatusOf(err).Outcome {
	case metrics.DeadlineExceeded, metrics.Overloaded, metrics.Unavailable, metrics.ContainerFailed, metrics.ContainerLost:
		return true
	}
	return false
}

// stage says where the time of a call without a result went, as far as that is known; the error
// says the rest.
func stage(t scheduler.Timing, total time.Duration) string {
	queue, total := t.Queue.Round(time.Microsecond), total.Round(time.Microsecond)
	switch {
	case t.Exec > 0:
		return fmt.Sprintf("%v in the queue, %v in the container", queue, t.Exec.Round(time.Microsecond))
	case t.Queue > 0:
		return fmt.Sprintf("%v in the queue, %v in the container so far", queue, total-queue)
	}
	return fmt.Sprintf("after %v", total)
}

// panicked makes an error of a panic over one request to an application.
func (g *Gate) panicked(app string, what any) error {
	g.log.Error("panic over a request to an application", "application", app, "panic", what, "stack", string(debug.Stack()))
	return fmt.Errorf("%w: application %q: %v", ErrInternal, app, what)
}

// remember keeps what was said for feedback: before the answer leaves, and once more when shadows
// have come later.
func (f *fanout) remember(shadows bool) {
	if f.id != "" {
		f.gate.apps.Predictions.Keep(f.app.Name, f.user, f.id, f.began, f.predictions(shadows), f.inputs)
	}
}
