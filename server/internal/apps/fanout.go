package apps

import (
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/composite"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/shiva/tensor"
)

// A fanout is the set of calls that a request to an application becomes, or feedback with an input:
// one for each model. They all have its deadline, by which the scheduler ends them, so that the
// answer needs no timer of its own.
//
// It owns its calls and their memory, to which the answer refers. It is reference-counted: one
// reference belongs to its opener, until Close, which comes after all answering calls are complete;
// and each shadow has one from Start until it is complete, which may be later. After the last
// release, the fanout and its calls are reused. With -tags invariants a missing reference panics.
type fanout struct {
	// Set before the calls are submitted.
	app      *application
	call     *gate.Call // the call to answer, not to be touched once it is complete; or
	feedback *feedback  // the feedback that asks the models in order to judge them
	user     string
	id       string // "" = no feedback can follow
	began    time.Time
	state    selection.State
	asks     []ask // never moved
	refused  []refusal

	parts   scheduler.Parts // of the answering calls, if there are several
	waiting atomic.Int32    // answering calls that are not complete; the last one finishes
	refs    atomic.Int32    // as above

	// Of a frame of a stream, once submitted; else nil. A pipeline may cancel while it submits.
	waiter atomic.Pointer[composite.Waiter]
	choice gate.Choice // set by finish

	request gate.Request // to the next model
	answers []selection.Prediction
	missing []selection.Ask
}

// An ask is the call to one model. Its fanout owns it.
type ask struct {
	call   gate.Call
	pick   selection.Ask
	fanout *fanout
}

// A refusal is a chosen model that cannot be asked.
type refusal struct {
	pick selection.Ask
	why  error
}

var fanouts = sync.Pool{New: func() any { return new(fanout) }}

// newFanout returns a fanout for that many calls. The caller owns its one reference.
func newFanout(a *application, calls int) *fanout {
	f := fanouts.Get().(*fanout)
	f.app, f.asks = a, slices.Grow(f.asks, calls)
	f.refs.Store(1)
	return f
}

// ask opens a call to one model with f.request, or records why the model cannot be asked.
func (f *fanout) ask(asked selection.Ask) {
	f.asks = f.asks[:len(f.asks)+1]
	a := &f.asks[len(f.asks)-1]
	a.pick, a.fanout = asked, f
	if asked.Shadow { // the door's memory may be reused before the shadow is complete
		f.request.Parameters, f.request.Metadata = slices.Clone(f.request.Parameters), slices.Clone(f.request.Metadata)
		f.request.Inputs = keep(f.request.Inputs)
		defer release(f.request.Inputs)
	}
	if err := f.app.gate.OpenTarget(&a.call, f.app.candidate(asked.Model), &f.request); err != nil {
		f.asks = f.asks[:len(f.asks)-1]
		f.refused = append(f.refused, refusal{asked, err})
		return
	}
	a.call.Owner = a
	if asked.Shadow {
		for _, t := range f.request.Inputs {
			t.Retain()
		}
		a.call.Own(f.request.Inputs...)
	} else {
		f.waiting.Add(1)
	}
}

// asked reports whether a model is, or was to be, asked.
func (f *fanout) asked(m selection.Model) bool {
	for i := range f.asks {
		if f.asks[i].pick.Model == m {
			return true
		}
	}
	return slices.ContainsFunc(f.refused, func(r refusal) bool { return r.pick.Model == m })
}

// divide makes the calls that should answer parts of one request, if there are several.
func (f *fanout) divide() {
	if f.waiting.Load() < 2 {
		return
	}
	for i := range f.asks {
		if a := &f.asks[i]; !a.pick.Shadow {
			a.call.PartOf(&f.parts)
		}
	}
}

// tell tells the models of these calls that the last one is complete.
func (f *fanout) tell() {
	for i := range f.asks {
		if a := &f.asks[i]; !a.pick.Shadow {
			f.app.gate.Told(&a.call)
		}
	}
}

// keep returns tensors that outlive their message: counted memory is retained, the rest is copied.
func keep(tensors []tensor.Tensor) []tensor.Tensor {
	own := make([]tensor.Tensor, len(tensors))
	for i, t := range tensors {
		t.Shape = slices.Clone(t.Shape)
		t.Name = strings.Clone(t.Name)
		if t.Buf != nil {
			t.Retain()
		} else {
			t.Data = slices.Clone(t.Data)
		}
		own[i] = t
	}
	return own
}

func release(tensors []tensor.Tensor) {
	for _, t := range tensors {
		t.Release()
	}
}

// open makes c the request that the fanout answers.
func (f *fanout) open(c *gate.Call) {
	f.call = c
	c.As(&f.firstToAnswer().call)
	c.Fanout = f
}

// Start implements gate.Fanout.
func (f *fanout) Start(calls []*gate.Call) []*gate.Call {
	if f.call != nil {
		f.waiter.Store(f.app.registry.order.Join(f.call, &f.firstToAnswer().call, f))
	}
	for i := range f.asks {
		if f.asks[i].pick.Shadow {
			f.refs.Add(1)
		}
		calls = append(calls, &f.asks[i].call)
	}
	return calls
}

// Complete answers the request once all calls but shadows are complete, and remembers a shadow's
// prediction.
func (a *ask) Complete(*gate.Call) {
	f := a.fanout
	switch {
	case a.pick.Shadow:
		if !errors.Is(a.call.Err, scheduler.ErrSuperseded) {
			f.remember([]selection.Prediction{a.prediction()}, nil)
		}
		f.Close()
	case f.waiting.Add(-1) == 0:
		f.finish(a)
	}
}

// Close releases a reference. After the last one the memory of the calls is released and the fanout
// is reused.
func (f *fanout) Close() {
	left := f.refs.Add(-1)
	if tensor.Invariants && left < 0 {
		panic(tensor.Violation("apps: a fanout was released more often than it was retained"))
	}
	if left > 0 {
		return
	}
	for i := range f.asks {
		a := &f.asks[i]
		a.call.Close()
		a.pick, a.fanout = selection.Ask{}, nil
	}
	clear(f.refused)
	clear(f.answers[:cap(f.answers)])
	clear(f.missing[:cap(f.missing)])
	f.asks, f.refused, f.answers, f.missing = f.asks[:0], f.refused[:0], f.answers[:0], f.missing[:0]
	f.app, f.call, f.feedback, f.user, f.id, f.state = nil, nil, nil, "", "", selection.State{}
	f.waiter.Store(nil)
	f.choice = gate.Choice{}
	f.waiting.Store(0)
	f.parts.Reset()
	fanouts.Put(f)
}

// Cancel implements gate.Fanout. The fanout is not closed yet, so it still owns the calls.
func (f *fanout) Cancel() {
	f.GiveUp()
	f.waiter.Load().Cancel()
}

// Retain implements composite.Work.
func (f *fanout) Retain() { f.refs.Add(1) }

// GiveUp cancels all calls.
func (f *fanout) GiveUp() {
	for i := range f.asks {
		f.app.gate.Cancel(&f.asks[i].call)
	}
}

// Voices implements gate.Fanout.
func (f *fanout) Voices() int { return len(f.asks) }

// prediction returns what a model predicted, with no outputs if it predicted nothing. It refers to
// the call's memory.
func (a *ask) prediction() selection.Prediction {
	p, c := selection.Prediction{Ask: a.pick}, &a.call
	if c.Err == nil {
		for i := range c.Outputs { // as many as declared: the scheduler has checked
			c.Outputs[i].Name = c.Target.Spec.Outputs[i].Name
		}
		p.Outputs = c.Outputs
	}
	return p
}

// predictions lists what the models predicted, except for shadows, which may not be complete.
func (f *fanout) predictions() []selection.Prediction {
	list := make([]selection.Prediction, 0, len(f.asks)+len(f.refused))
	for i := range f.asks {
		if a := &f.asks[i]; !a.pick.Shadow {
			list = append(list, a.prediction())
		}
	}
	for _, r := range f.refused {
		list = append(list, selection.Prediction{Ask: r.pick})
	}
	return list
}

// remember keeps what models predicted for feedback.
func (f *fanout) remember(predictions []selection.Prediction, inputs []Inputs) {
	if f.id != "" {
		f.app.registry.Predictions.Keep(f.app.Name, f.user, f.id, f.began, predictions, inputs)
	}
}

// finish answers with the predictions that have arrived; last is the answering call that completed
// last.
func (f *fanout) finish(last *ask) {
	answer, fault := f.combine()
	f.tell()
	if f.feedback != nil {
		f.feedback.complete(f, fault)
		return
	}
	c := f.call
	c.Err = nil
	c.Outputs = c.Outputs[:0]
	c.Alone = last.call.Alone
	for i := range f.asks {
		if a := &f.asks[i]; !a.pick.Shadow && a.call.Timing.Queue+a.call.Timing.Exec >= c.Timing.Queue+c.Timing.Exec {
			c.Timing = a.call.Timing
		}
	}
	main := f.mainAsk(answer)
	c.Target, c.Squeeze, c.Rows = main.call.Target, main.call.Squeeze, main.call.Rows
	f.choice.Application, f.choice.Confidence = f.app.Name, answer.Confidence
	c.Choice, c.Frame = &f.choice, main.call.Frame
	f.noteMissing(answer)
	if fault == nil {
		for _, t := range answer.Outputs {
			t.Retain()
			c.Outputs = append(c.Outputs, t)
		}
	} else {
		f.fallBack(fault)
	}
	waiter := f.waiter.Load()
	waiter.FailIfSuperseded()
	// Before the answer leaves. A superseded frame gets no feedback.
	if f.id != "" && !errors.Is(c.Err, scheduler.ErrSuperseded) {
		f.remember(f.predictions(), f.lessons())
	}
	if waiter != nil {
		waiter.Finish()
		return
	}
	c.Finish()
}

// combine makes an answer from the predictions that have arrived, or reports why there is none. It
// runs on the goroutine that completed the last call, often that of a container's session: a panic
// caused by the outputs of one model fails this request and no other.
func (f *fanout) combine() (answer selection.Answer, fault error) {
	defer func() {
		if r := recover(); r != nil {
			answer, fault = selection.Answer{}, f.app.panicked(r)
		}
	}()
	for i := range f.asks {
		switch a := &f.asks[i]; {
		case a.pick.Shadow:
		case a.call.Err == nil:
			f.answers = append(f.answers, a.prediction())
		default:
			fault = cmp.Or(fault, a.call.Err) // the error of the heaviest model
			f.missing = append(f.missing, a.pick)
		}
	}
	for _, r := range f.refused {
		f.missing = append(f.missing, r.pick)
	}
	answer = f.app.Selection.Combine(f.state, f.answers, f.missing)
	switch {
	case answer.Outputs != nil:
		fault = nil
	case fault == nil:
		fault = fmt.Errorf("%w: application %q: the outputs of its models cannot be combined: %s",
			scheduler.ErrContainerFailed, f.app.Name, answer)
	}
	return answer, fault
}

// noteMissing names and counts the models that did not contribute to the answer.
func (f *fanout) noteMissing(answer selection.Answer) {
	for _, v := range answer.Voices {
		if v.Unheard != "" && !v.Shadow {
			f.choice.Missing = append(f.choice.Missing, gate.Missing{Model: v.Model.String(), Why: f.missingReason(v)})
			if t := f.app.candidate(v.Model); t != nil {
				t.Metrics.Unheard()
			}
		}
	}
	if f.choice.Missing != nil {
		f.app.target.Metrics.Unheard()
	}
}

// missingReason returns the reason why a model did not contribute.
func (f *fanout) missingReason(v selection.Voice) string {
	for i := range f.asks {
		if a := &f.asks[i]; a.pick.Model == v.Model && a.call.Err != nil {
			return fault.Text(a.call.Err)
		}
	}
	for _, r := range f.refused {
		if r.pick.Model == v.Model {
			return fault.Text(r.why)
		}
	}
	return v.Unheard
}

// mainAsk returns the call of the model that contributes most to the answer: the answer names that
// model, and has the rows as that model counted them. Without an answer it is the heaviest model's
// call.
func (f *fanout) mainAsk(answer selection.Answer) *ask {
	main, best := f.firstToAnswer(), -1.0
	if answer.Outputs == nil {
		return main
	}
	for _, v := range answer.Voices {
		part := v.Weight * v.Agreement
		if v.Unheard != "" || v.Shadow || !(part > best) {
			continue
		}
		for i := range f.asks {
			if a := &f.asks[i]; a.pick.Model == v.Model {
				main, best = a, part
			}
		}
	}
	return main
}

// firstToAnswer returns the call of the heaviest model that was asked for the answer. There is one.
func (f *fanout) firstToAnswer() *ask {
	i := 0
	for f.asks[i].pick.Shadow { // do not copy the ask: a complete call may be being canceled
		i++
	}
	return &f.asks[i]
}

// fallBack answers with the application's default output, if it has one and err is
// replaceable; else with err.
func (f *fanout) fallBack(err error) {
	c, first := f.call, &f.firstToAnswer().call
	c.Err = err
	if !f.app.HasDefault() || !replaceable(err) {
		return
	}
	outputs, odd := f.app.DefaultOutput(&first.Target.Spec, first.Rows, f.app.gate.Pool())
	if odd != nil {
		c.Err = fmt.Errorf("%w; and %w", err, odd)
		return
	}
	c.Err, c.Outputs = nil, append(c.Outputs, outputs...)
	f.choice.Default = true
	f.choice.Explanation = fmt.Sprintf("%s (%s)", fault.Text(err), stage(first.Timing, time.Since(f.began)))
}

// replaceable reports whether the default output may replace an error: the models could not answer,
// or not in time. An invalid or cancelled request, or one that should go to another server, is
// answered with its error.
func replaceable(err error) bool {
	switch fault.Of(err).Outcome {
	case metrics.DeadlineExceeded, metrics.Overloaded, metrics.Unavailable, metrics.ContainerFailed,
		metrics.ContainerLost:
		return true
	}
	return false
}

// stage says where the time of a call without a result was spent, as far as known; the error says
// the rest.
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

// panicked makes an error from a panic during one request to the application.
func (a *application) panicked(what any) error {
	a.registry.cfg.Log.Error("panic in a request to an application", "application", a.Name, "panic", what, "stack",
		string(debug.Stack()))
	return fmt.Errorf("%w: application %q: %v", fault.ErrInternal, a.Name, what)
}
