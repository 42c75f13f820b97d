package predict

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Door is the Service of one door, with its metrics.
type Door struct {
	*Service
	metrics *metrics.Door
	sources atomic.Uint64
}

// Door returns the service of a door that counts in m.
func (s *Service) Door(m *metrics.Door) *Door { return &Door{Service: s, metrics: m} }

// NewSource numbers a connection, for fairness between connections: see [gate.Request]. Its numbers
// differ from those of the TCP door, which count from 1.
func (d *Door) NewSource() uint64 {
	return uint64(d.metrics.Index()+1)<<56 | d.sources.Add(1)
}

// Follows reports whether the door's requests may be traced, so that reading a traceparent is
// worthwhile.
func (d *Door) Follows() bool { return d.gate.Follows() }

// An Outbox is a client's [gate.Outbox] in which goroutines can wait for room. All requests of the
// client call it, each from its own goroutine.
type Outbox interface {
	// Admit waits until there is room for the answer to an open call. Submitted is called once the
	// call has its place in the queue. Put replaces the reserved size by that of the answer, or of
	// an error, which counts until Take. It fails when the answer is larger and does not fit.
	Admit(ctx context.Context, c *gate.Call) (expected int, err error)
	Submitted()
	Put(c *gate.Call, expected int) (size int, err error)
	Take(size int)
}

// An Answer has the outputs of a model. Release it once.
type Answer struct {
	Model, Version string
	// Outputs have names, and shapes as the client expects them: without the batch dimension if the
	// request had none.
	Outputs []tensor.Tensor
	places  []parameter.Place // of the outputs whose data was written elsewhere; nil: none
	Timing  scheduler.Timing
	Choice  *gate.Choice // how an application chose; nil for a model
	Frame   *gate.Frame  // for a frame of a stream; else nil
	Size    int          // counted in the client's Outbox until the caller's Take

	target *gate.Target
	call   *call
	ended  func() // ends the request's trace; nil: it is not traced
}

// Objects returns the outputs of a pipeline as one object for each row of the request. They refer
// to the outputs.
func (a *Answer) Objects() ([]*nested.Object, error) {
	rows, err := a.target.Nested.Of(a.target.Spec.Outputs, a.Outputs, a.call.gate.Rows)
	if err != nil {
		return nil, fmt.Errorf("%w: the answer of %q: %w", fault.ErrInternal, a.Model, err)
	}
	return rows, nil
}

// checkNested checks that the answer to a request can be nested.
func checkNested(t *gate.Target, wanted []gate.Output) error {
	if t.Nested == nil {
		return fault.Invalid("nested is for pipelines, and %q is none", t.ID.Name)
	}
	for _, w := range wanted {
		if w.Classes > 0 || w.Place != (parameter.Place{}) {
			return fault.Invalid("output %q: a nested answer has neither classifications nor outputs in shared memory", w.Name)
		}
	}
	return nil
}

// Place returns where the data of output i was written; zero: into the answer.
func (a *Answer) Place(i int) parameter.Place {
	if a.places == nil {
		return parameter.Place{}
	}
	return a.places[i]
}

// Release releases the outputs, and ends the request.
func (a *Answer) Release() {
	if a.ended != nil {
		a.ended()
		a.ended = nil
	}
	if c := a.call; c != nil {
		a.call, a.Outputs = nil, nil
		c.free()
	}
}

// A call is a request whose goroutine waits for its answer.
type call struct {
	gate gate.Call     // the gate's side of it
	done chan struct{} // closed when the request is complete
}

var calls = sync.Pool{New: func() any { return new(call) }}

// Complete implements gate.Owner.
func (c *call) Complete(*gate.Call) { close(c.done) }

// wait submits a call and returns when it is complete. If ctx ends first, it cancels the call.
func (d *Door) wait(ctx context.Context, c *call, box Outbox) {
	c.gate.Owner, c.done = c, make(chan struct{})
	d.gate.Submit(&c.gate)
	box.Submitted()
	select {
	case <-c.done:
	case <-ctx.Done():
		d.gate.Cancel(&c.gate)
		<-c.done
	}
}

func (c *call) free() {
	c.gate.Close()
	calls.Put(c)
}

// Infer submits a request, waits for the answer, and counts the request. It takes over the
// references to the inputs, even if it fails. If ctx ends first, the request is cancelled, with the
// error ErrCanceled, or ErrDeadlineExceeded if the context's deadline has passed. box bounds the
// client's unread answers; nil: it reads one at a time.
func (d *Door) Infer(ctx context.Context, r *gate.Request, box Outbox) (a *Answer, err error) {
	d.metrics.Began()
	defer Release(r)
	model := d.gate.Unrouted()
	r.Trace = d.gate.StartTrace(&r.Values, d.metrics.Name(), r.Arrived, nil)
	name := r.Model
	_, err = d.gate.As(r.Who).Resolve(r)
	var target *gate.Target
	if err == nil {
		target, err = d.gate.As(r.Who).Asked(r.Model, r.Version)
	}
	if err == nil {
		if r.Newest == nil { // which no model answers
			model = target.Metrics
		}
		a, err = d.infer(ctx, r, target, box)
	}
	var timing scheduler.Timing
	var choice *gate.Choice
	if err == nil {
		timing, choice = a.Timing, a.Choice
	}
	outcome := gate.Outcome(err, choice)
	d.metrics.Answered(model, outcome, time.Since(r.Arrived), timing.Queue, timing.Exec)
	if followed := r.Trace; followed != nil {
		if err != nil {
			followed.End(name, outcome.String(), err)
		} else {
			a.ended = func() { followed.End(name, outcome.String(), nil) }
		}
	}
	return a, err
}

// Release releases the inputs of a request. It may be called after a panic.
func Release(r *gate.Request) {
	for _, t := range r.Inputs {
		t.Release()
	}
	r.Inputs = nil
}

// Refused counts a request that could not be read.
func (d *Door) Refused(err error, arrived time.Time) {
	d.metrics.Began()
	d.metrics.Answered(d.gate.Unrouted(), fault.Of(err).Outcome, time.Since(arrived), 0, 0)
}

func (d *Door) infer(ctx context.Context, r *gate.Request, target *gate.Target, box Outbox) (*Answer, error) {
	chosen, err := choose(target, r.Outputs)
	if err == nil && r.Nested {
		err = checkNested(target, r.Outputs)
	}
	if err != nil {
		return nil, err
	}
	places, err := d.holdPlaces(r)
	if err != nil {
		return nil, err
	}
	defer places.release()
	limit(ctx, r, target)
	c := calls.Get().(*call)
	if err := d.gate.OpenTarget(&c.gate, target, r); err != nil {
		calls.Put(c)
		return nil, err
	}
	if box == nil {
		box = new(singleOutbox)
	}
	size, err := d.ask(ctx, c, box)
	if err != nil {
		c.free()
		return nil, Late(ctx, err)
	}
	a := &Answer{Size: size, Model: target.ID.Name, Version: target.ID.Version, Timing: c.gate.Timing,
		Choice: c.gate.Choice, Frame: c.gate.Frame, call: c}
	if c.gate.Target != target {
		// The answer follows the declaration of the model that contributes most to it, whose
		// outputs may differ from those of the application's first model; or of the version that
		// made the newest answer of a stream.
		target = c.gate.Target
		if a.Version = target.ID.Version; c.gate.Choice != nil {
			a.Version = target.ID.String()
		}
		chosen, err = choose(target, r.Outputs)
	}
	a.target = target
	if err == nil {
		err = a.write(r.Outputs, target.Spec.Outputs, chosen)
	}
	if err == nil {
		err = places.put(a, r)
	}
	if err != nil {
		a.Release()
		box.Take(size)
		return nil, err
	}
	return a, nil
}

// limit bounds the request's time by that of its context, and reads its rows as this protocol does.
func limit(ctx context.Context, r *gate.Request, target *gate.Target) {
	if end, ok := ctx.Deadline(); ok {
		left := min(max(end.Sub(r.Arrived), 1), parameter.MaxTimeout)
		if r.Timeout == 0 || left < r.Timeout {
			r.Timeout = left
		}
	}
	// A model with an adapter takes a tensor of any shape as one row. In this protocol, the first
	// dimension of a matrix counts rows.
	r.Batch = target.Spec.Batched() && len(r.Inputs) > 0 && len(r.Inputs[0].Shape) > 1
}

// write makes the answer's outputs from the chosen ones.
func (a *Answer) write(wanted []gate.Output, specs []tensor.Spec, chosen []int) (err error) {
	a.Outputs = make([]tensor.Tensor, len(chosen))
	for i, at := range chosen {
		t, shown := a.call.gate.Outputs[at], a.call.gate.ClientShape(at)
		if wanted != nil && wanted[i].Classes > 0 {
			squeezed := len(shown) < len(t.Shape)
			if t, err = classify(t, wanted[i].Classes, specs[at].Labels); err != nil {
				return err
			}
			if shown = t.Shape; squeezed {
				shown = shown[1:]
			}
		}
		t.Shape, t.Name = shown, specs[at].Name
		a.Outputs[i] = t
	}
	return nil
}

// ask waits for room for the answer to a call, submits the call, and waits for the answer.
func (d *Door) ask(ctx context.Context, c *call, box Outbox) (size int, err error) {
	room, err := box.Admit(ctx, &c.gate)
	if err != nil {
		return 0, err
	}
	d.wait(ctx, c, box)
	if size, err = box.Put(&c.gate, room); c.gate.Err != nil {
		err = c.gate.Err
	}
	return size, err
}

// singleOutbox is the Outbox of a client that has one answer at a time. Only the quota depends on
// the size of the answer.
type singleOutbox struct{ box gate.Outbox }

func (a *singleOutbox) Admit(_ context.Context, c *gate.Call) (expected int, err error) {
	expected, _, err = a.box.Admit(c)
	return expected, err
}

func (*singleOutbox) Submitted() {}

func (a *singleOutbox) Put(c *gate.Call, expected int) (size int, err error) {
	return a.box.Put(c, expected)
}

func (a *singleOutbox) Take(size int) { a.box.Take(size) }

// Late turns ErrCanceled into ErrDeadlineExceeded if the context's deadline has passed: transports
// cancel the context then, so that its own error may be either.
func Late(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && errors.Is(err, scheduler.ErrCanceled) && !time.Now().Before(end) {
		return fmt.Errorf("%w: the client's deadline passed", scheduler.ErrDeadlineExceeded)
	}
	return err
}

// choose finds the indexes of the requested outputs in the model's declaration.
func choose(t *gate.Target, wanted []gate.Output) ([]int, error) {
	specs := t.Spec.Outputs
	if len(wanted) == 0 {
		all := make([]int, len(specs))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	if len(specs) == 0 {
		return nil, fmt.Errorf("%w: the outputs of %q are not known until a container has registered",
			scheduler.ErrUnavailable, t.ID.Name)
	}
	at := make([]int, len(wanted))
	for i, w := range wanted {
		at[i] = slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == w.Name })
		if at[i] < 0 {
			return nil, fault.Invalid("no output %q; model %q has %s", w.Name, t.ID.Name,
				gate.Join(specs, func(s tensor.Spec) string { return strconv.Quote(s.Name) }, ", "))
		}
		if slices.Contains(at[:i], at[i]) {
			return nil, fault.Invalid("output %q is requested twice", w.Name)
		}
		if w.Classes < 0 {
			return nil, fault.Invalid("output %q: classification %d, expected 1 or more", w.Name, w.Classes)
		}
		if d := specs[at[i]].DType; w.Classes > 0 && !d.Ordered() {
			return nil, fault.Invalid("output %q: classification is for real numbers, its datatype is %s", w.Name,
				d.V2())
		}
	}
	return at, nil
}
