package gate

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/cache"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/latest"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Call is one request on its way through the gate. The zero Call is ready for Open; after Close
// it may be opened again.
//
// It belongs to its door, except between Submit and the Owner's Complete, when the door may only
// cancel it. What it was opened with (the tensors, their memory, the Request's slices) must not
// change until Close. From Complete to Close the call holds one reference to each output. With
// -tags invariants, any other order of use panics.
type Call struct {
	Owner Owner // set by the door before Submit

	// Set by Open.

	Use *access.Use // to which Outbox charges the answer; nil: no quota applies

	// Target is the model that serves the call, or the pipeline; for an application, the model that
	// contributes most to the answer.
	Target   *Target
	Inputs   []tensor.Tensor // in the order of the model's declaration
	Rows     int             // of each; 1 if there are none
	Deadline time.Time
	Squeeze  bool // one row sent without its batch dimension: the answer has none either
	Bridge   bool // request and answer are in bridge form

	cut        bool // its rows are regions
	unforeseen bool // the size of the answer was not known in advance
	step       step
	Alone      bool // set before Complete: no other call completes with it, so do not wait for more

	Fanout Fanout // set by a composite's Open, and submitted instead; nil for a model

	// The answer, set before Complete: Outputs in the order of the model's declaration, or Err.

	Outputs []tensor.Tensor
	Err     error
	Timing  scheduler.Timing
	Choice  *Choice // how an application answered; nil for a model
	Frame   *Frame  // what the answer says about its stream; nil: the call is not a frame

	form      *form // of a question in bridge form; nil: no output depends on it
	frame     Frame
	request   scheduler.Request // to a model; belongs to the scheduler or a cache until complete
	cacheCall cache.Call
	newest    *latest.Name // keeps the answer to a frame; nil: it is part of another answer
	metrics   *metrics.Model
	trace     *trace.Trace // nil: the request is not traced
	ask       *trace.Ask   // nil: not traced; only for calls to models
	id        []byte       // Request.ID
	client    string       // who asks, for operators: an identity or a machine

	inputs [2]tensor.Tensor // backs Inputs of the usual model
	dims   [12]int          // backs shapes that were given a leading 1
	owned  []tensor.Tensor  // inputs made on the way (casts, texts), released by Close
}

// An Owner is told when one of its calls is complete: exactly once for each submitted call, from
// any goroutine, with no lock held, perhaps before Submit returns. Complete must not block. It may
// close the call and submit others. A question that is detached from its call has none: nil.
type Owner interface{ Complete(*Call) }

// A step is how far a call has come. Only the invariants build looks at it.
type step uint8

const (
	atDoor step = iota
	submitted
	complete
)

func (c *Call) pass(from, to step) {
	if tensor.Invariants && c.step != from {
		panic(
			tensor.Violation(fmt.Sprintf("gate: call for %v: step %d, expected %d on its way to %d", c.Target, c.step,
				from, to)))
	}
	c.step = to
}

// As opens c as another call was opened, with the same request, except for its inputs.
func (c *Call) As(first *Call) {
	c.Target, c.Rows, c.Deadline = first.Target, first.Rows, first.Deadline
	c.Squeeze, c.Bridge, c.form = first.Squeeze, first.Bridge, first.form
}

// GiveInputsUp releases what Arrange made for the inputs, which nobody reads any more. The tensors
// that the request came with belong to its door until Close.
func (c *Call) GiveInputsUp() {
	c.owned = Released(c.owned)
	clear(c.Inputs)
	c.Inputs = nil
}

// PartOf makes c one of the calls of a client's request to a composite. It is called before any of
// them is submitted; once they are complete, the composite calls Told for each.
func (c *Call) PartOf(parts *scheduler.Parts) {
	parts.Add(1)
	c.request.Parts = parts
}

// Told says that the client is about to have the answer of which c is a part.
func (g *Gate) Told(c *Call) { g.sched.Told(&c.request) }

// Own hands references to tensors to the call, which Close releases.
func (c *Call) Own(tensors ...tensor.Tensor) { c.owned = append(c.owned, tensors...) }

// Finish tells the owner that the answer is ready. A Fanout calls it last, and must not use the
// call afterwards.
func (c *Call) Finish() {
	c.pass(submitted, complete)
	waits := c.keep()
	if c.trace != nil && c.ask == nil {
		c.trace.Answered()
	}
	c.Owner.Complete(c)
	if waits != nil {
		waits.Serve()
	}
}

// Failed returns the rows of a call with Holes that its container has failed, in their order; their
// outputs are void. It may be called from Complete to Close.
func (c *Call) Failed() []scheduler.RowError {
	if c.request.Rare == nil {
		return nil
	}
	return c.request.Rare.Failed
}

// An answerer is a Call in its role as the owner of a scheduler's request.
type answerer Call

// Name implements scheduler.Named.
func (a *answerer) Name() string {
	name := "without an id"
	if a.id != nil {
		name = fault.Cut(string(a.id), 64)
	}
	return fmt.Sprintf("%s, from %s (connection %d)", name, cmp.Or(a.client, "this program"), a.request.Source)
}

// Complete takes the answer of the scheduler or of the cache.
func (a *answerer) Complete(r *scheduler.Request) {
	c := (*Call)(a)
	c.Outputs, c.Err, c.Timing, c.Alone = r.Outputs, r.Err, r.Timing, r.Alone
	if f := c.Frame; f != nil {
		f.answered(c)
	}
	if c.ask != nil {
		c.ask.Done(r)
	}
	c.Finish()
}

// A submission is the memory of one Submit, reused afterwards.
type submission struct {
	calls    []*Call // with calls to models in place of those to composites
	requests []*scheduler.Request
}

var submissions = sync.Pool{New: func() any { return new(submission) }}

// Submit hands opened calls to the scheduler, all at once, so that they may share a batch. Calls
// that the model's cache answers and calls without rows do not go to the scheduler; calls to a
// composite are replaced by its calls to models. Each gets its Owner's Complete exactly once,
// perhaps before Submit returns.
func (g *Gate) Submit(calls ...*Call) { g.submit(calls, (*scheduler.Scheduler).Submit) }

// SubmitNext is Submit for calls that the answer to another one has made possible: see
// [scheduler.Scheduler.SubmitNext].
func (g *Gate) SubmitNext(calls ...*Call) { g.submit(calls, (*scheduler.Scheduler).SubmitNext) }

func (g *Gate) submit(calls []*Call, submit func(*scheduler.Scheduler, ...*scheduler.Request)) {
	if len(calls) == 0 {
		return
	}
	s := submissions.Get().(*submission)
	if g.fanning.Load() {
		// Collect all calls of a fan-out before any completes: the last one to complete may end the
		// fan-out.
		for _, c := range calls {
			s.calls = c.spread(s.calls)
		}
		calls = s.calls
	}
	caching := g.caching.Load()
	var now time.Time
	for _, c := range calls {
		c.pass(atDoor, submitted)
		r := &c.request
		if c.ask != nil {
			c.ask.Submitted(time.Now())
		}
		r.Inputs, r.Rows, r.Deadline, r.Owner = c.Inputs, c.Rows, c.Deadline, (*answerer)(c)
		switch {
		case c.Rows == 0 && r.Model != nil:
			c.Outputs = emptyOutputs(c.Outputs, r.Model.Spec().Outputs)
			c.trace.Answered()
			c.Finish()
			continue
		case caching && c.cacheCall.Version != nil:
			if now.IsZero() {
				now = time.Now()
			}
			if c.cacheCall.Find(r, now) {
				continue
			}
		}
		s.requests = append(s.requests, r)
	}
	submit(g.sched, s.requests...)
	clear(s.calls)
	clear(s.requests)
	s.calls, s.requests = s.calls[:0], s.requests[:0]
	submissions.Put(s)
}

// spread appends what is submitted for c: the call itself, or a composite's calls to models.
func (c *Call) spread(calls []*Call) []*Call {
	if c.Fanout == nil {
		return append(calls, c)
	}
	c.pass(atDoor, submitted)
	i := len(calls)
	for calls = c.Fanout.Start(calls); i < len(calls); {
		if inner := calls[i]; inner.Fanout != nil { // one composite asks another
			calls = inner.spread(slices.Delete(calls, i, i+1))
			continue
		}
		i++
	}
	return calls
}

// checkNoRows returns an error if the answer to zero rows has a size that the declaration leaves
// open: only an execution determines it, perhaps by the inputs, and there is none.
func checkNoRows(t *Target) error {
	for _, output := range t.Spec.Outputs {
		if slices.Contains(output.Shape[1:], -1) {
			return fault.Invalid("no rows: model %q executes nothing for them, and of its output %q %s %s, only an execution determines all sizes; send at least one row",
				t.ID.Name, output.Name, output.DType, output.Shape)
		}
	}
	return nil
}

// emptyOutputs makes the answer to zero rows, which needs no container: rows of a batched model are
// independent, and old containers crash on an empty batch. checkNoRows has seen that all other
// sizes are declared.
func emptyOutputs(outputs []tensor.Tensor, specs []tensor.Spec) []tensor.Tensor {
	for _, output := range specs {
		shape := slices.Clone(output.Shape)
		for k := range shape {
			shape[k] = max(shape[k], 0)
		}
		outputs = append(outputs, tensor.Tensor{Name: output.Name, DType: output.DType, Shape: shape})
	}
	return outputs
}

// Cancel cancels a submitted call because its client has disconnected. Complete is still called.
func (g *Gate) Cancel(c *Call) {
	switch {
	case c.Fanout != nil:
		c.Fanout.Cancel()
	case c.cacheCall.Version != nil && c.cacheCall.Cancel():
	default:
		g.sched.Cancel(&c.request)
	}
}

// Released releases tensors, and returns their list empty, for reuse.
func Released(list []tensor.Tensor) []tensor.Tensor {
	for i := range list {
		list[i].Release()
	}
	clear(list)
	return list[:0]
}

// Close releases what the call holds: outputs, and inputs that were made for it. It clears the
// fields that would keep memory alive or leak into the next request, and leaves the rest, most of a
// kilobyte, untouched.
func (c *Call) Close() {
	if c.step == complete {
		c.pass(complete, atDoor)
	}
	c.pass(atDoor, atDoor)
	c.Outputs, c.owned = Released(c.Outputs), Released(c.owned)
	clear(c.Inputs)
	c.Inputs = nil
	c.Owner, c.Use, c.Target, c.Err, c.Choice, c.Frame, c.metrics = nil, nil, nil, nil, nil, nil, nil
	c.trace, c.ask, c.id, c.client, c.form = nil, nil, nil, "", nil
	c.Timing = scheduler.Timing{}
	c.Squeeze, c.Bridge, c.Alone, c.cut = false, false, false, false
	c.cacheCall.Version, c.cacheCall.Salt = nil, ""
	c.newest = nil
	r := &c.request
	r.Model, r.Inputs, r.Parameters, r.Rare, r.Frame, r.Trace, r.Owner, r.Parts = nil, nil, nil, nil, nil, nil, nil, nil
	r.Outputs, r.Err, r.Timing, r.Alone = c.Outputs, nil, scheduler.Timing{}, false
	if f := c.Fanout; f != nil {
		c.Fanout = nil
		f.Close()
	}
}
