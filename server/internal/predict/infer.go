package predict

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Door is one way in to a Service. It counts what passes.
type Door struct {
	*Service
	metrics *metrics.Door
	sources atomic.Uint64
}

// Door makes a way in that counts with m.
func (s *Service) Door(m *metrics.Door) *Door { return &Door{Service: s, metrics: m} }

// NewSource names a connection, for fairness between those that ask: see [Question]. Sources of
// this package never meet those of the TCP door, which count from 1.
func (d *Door) NewSource() uint64 {
	return uint64(d.metrics.Index()+1)<<56 | d.sources.Add(1)
}

// A Question asks a model for the outputs of some rows.
type Question struct {
	Model   string
	Version string // "" = the default
	ID      string // echoed

	// Inputs have names, and shapes as the client sent them: with the batch dimension, or one
	// row without it. The references are Infer's from the call on, whatever comes of it.
	Inputs []tensor.Tensor
	// Outputs are those wanted, in the order of the answer; none = all.
	Outputs []Output

	// Values are the parameters that are the server's. A deadline of the context counts beside
	// Timeout.
	parameter.Values

	// Parameters is a JSON object that goes to the container with the rows; nil = none.
	Parameters []byte

	Arrived time.Time // when the request began to be dealt with
	Source  uint64    // the connection's, from NewSource
	Outbox  Outbox    // what bounds the answers that the client has not read; nil: nothing does
}

// An Outbox is a client's [gate.Outbox] whose room can be waited for. It is called by all that
// ask for the client.
type Outbox interface {
	// Admit waits until there is room for the answer to an open call. Put brings that, or its
	// error, in the place of what was expected, and says how much of the room it takes until
	// Take: it fails when that is not to be had.
	Admit(ctx context.Context, c *gate.Call) (expected int, err error)
	Put(c *gate.Call, expected int) (size int, err error)
	Take(size int)
}

// An Output is one that a client asks for.
type Output struct {
	Name string
	// Classes asks for the names of so many of the highest values instead of the values
	// (classification extension); 0 = the tensor.
	Classes int
}

// An Answer is what a model predicted. Release it once.
type Answer struct {
	Model, Version string
	ID             string
	// Outputs have names and the shapes that the client expects: without the batch dimension if
	// the question came so.
	Outputs []tensor.Tensor
	Timing  scheduler.Timing
	Choice  *gate.Choice // what an application did; nil for a model
	Size    int          // of the room in the question's Outbox, which is whoever takes the answer's to give back

	call *call
}

// Release gives the memory of the outputs back.
func (a *Answer) Release() {
	if c := a.call; c != nil {
		a.call, a.Outputs = nil, nil
		c.free()
	}
}

// A call is one request on its way through the gate, and whoever waits for it.
type call struct {
	gate.Call
	done chan struct{} // closed when the request is complete
}

var calls = sync.Pool{New: func() any { return new(call) }}

// Complete implements gate.Owner.
func (c *call) Complete(*gate.Call) { close(c.done) }

// wait submits a call and returns when it is complete; when ctx ends first, it is given up.
func (d *Door) wait(ctx context.Context, c *call) {
	c.Owner, c.done = c, make(chan struct{})
	d.gate.Submit(&c.Call)
	select {
	case <-c.done:
	case <-ctx.Done():
		d.gate.Cancel(&c.Call)
		<-c.done
	}
}

func (c *call) free() {
	c.Close()
	calls.Put(c)
}

// Infer asks, waits and counts. When ctx ends first, the request leaves the queue: the error is
// then ErrCanceled, or ErrDeadlineExceeded if it was the context's deadline.
func (d *Door) Infer(ctx context.Context, q *Question) (*Answer, error) {
	d.metrics.Began()
	defer q.release()
	a, model, err := d.infer(ctx, q)
	var timing scheduler.Timing
	var choice *gate.Choice
	if err == nil {
		timing, choice = a.Timing, a.Choice
	}
	d.metrics.Answered(model, gate.Outcome(err, choice), time.Since(q.Arrived), timing.Queue, timing.Exec)
	return a, err
}

// release gives the memory of the inputs back, after a panic too.
func (q *Question) release() {
	for _, t := range q.Inputs {
		t.Release()
	}
	q.Inputs = nil
}

// Refused counts a request that could not be read, so that no Question of it was asked.
func (d *Door) Refused(err error, arrived time.Time) {
	d.metrics.Began()
	d.metrics.Answered(d.gate.Unrouted(), gate.StatusOf(err).Outcome, time.Since(arrived), 0, 0)
}

func (d *Door) infer(ctx context.Context, q *Question) (*Answer, *metrics.Model, error) {
	target, err := d.gate.Asked(q.Model, q.Version)
	if err != nil {
		return nil, d.gate.Unrouted(), err
	}
	chosen, err := choose(target, q.Outputs)
	if err != nil {
		return nil, target.Metrics, err
	}
	p := gate.Params{Values: q.Values, Now: q.Arrived, Forward: q.Parameters, Source: q.Source}
	if q.ID != "" {
		p.ID = shiva.AppendString(nil, q.ID) // as it would be in the metadata of a Shiva message
	}
	if end, ok := ctx.Deadline(); ok {
		left := min(max(end.Sub(q.Arrived), 1), parameter.MaxTimeout)
		if p.Timeout == 0 || left < p.Timeout {
			p.Timeout = left
		}
	}
	// To a model with an adapter a tensor of any shape may be one row. On this wire a matrix is
	// rows.
	p.Batch = target.Spec.Batched() && len(q.Inputs) > 0 && len(q.Inputs[0].Shape) > 1

	c := calls.Get().(*call)
	if err := d.gate.OpenTarget(&c.Call, target, q.Inputs, &p); err != nil {
		calls.Put(c)
		return nil, target.Metrics, err
	}
	size, err := d.ask(ctx, c, q.Outbox)
	if err != nil {
		c.free()
		return nil, target.Metrics, Late(ctx, err)
	}
	a := &Answer{Size: size, Model: target.ID.Name, Version: target.ID.Version, ID: q.ID, Timing: c.Timing, Choice: c.Choice, call: c}
	said := target
	if c.Choice != nil {
		// The answer is most of all that of one model, whose outputs need not be those of the
		// application's first.
		said = c.Target
		a.Version = said.ID.String()
		if chosen, err = choose(said, q.Outputs); err != nil {
			a.discard(q)
			return nil, target.Metrics, err
		}
	}
	a.Outputs = make([]tensor.Tensor, len(chosen))
	for i, at := range chosen {
		t := c.Outputs[at]
		shown := c.Shown(at)
		if q.Outputs != nil && q.Outputs[i].Classes > 0 {
			squeezed := len(shown) < len(t.Shape)
			if t, err = classify(t, q.Outputs[i].Classes, said.Spec.Outputs[at].Labels); err != nil {
				a.discard(q)
				return nil, target.Metrics, err
			}
			if shown = t.Shape; squeezed {
				shown = shown[1:]
			}
		}
		t.Shape = shown
		t.Name = said.Spec.Outputs[at].Name
		a.Outputs[i] = t
	}
	return a, target.Metrics, nil
}

// discard gives up an answer that turns out to be none.
func (a *Answer) discard(q *Question) {
	if a.Release(); q.Outbox != nil {
		q.Outbox.Take(a.Size)
	}
}

// ask submits a call and waits for its answer, once there is room for that.
func (d *Door) ask(ctx context.Context, c *call, o Outbox) (size int, err error) {
	if o == nil {
		d.wait(ctx, c)
		return 0, c.Err
	}
	room, err := o.Admit(ctx, &c.Call)
	if err != nil {
		return 0, err
	}
	d.wait(ctx, c)
	if size, err = o.Put(&c.Call, room); c.Err != nil {
		err = c.Err
	}
	return size, err
}

// Late is the error of a request that was cut off: ErrDeadlineExceeded for ErrCanceled if that
// was at the context's deadline. The context itself need not say so, since transports cancel it
// then.
func Late(ctx context.Context, err error) error {
	if end, ok := ctx.Deadline(); ok && errors.Is(err, scheduler.ErrCanceled) && !time.Now().Before(end) {
		return fmt.Errorf("%w: the client's deadline passed", scheduler.ErrDeadlineExceeded)
	}
	return err
}

// choose finds the places of the wanted outputs in the model's declaration.
func choose(t *gate.Target, wanted []Output) ([]int, error) {
	specs := t.Spec.Outputs
	if len(wanted) == 0 {
		all := make([]int, len(specs))
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	at := make([]int, len(wanted))
	for i, w := range wanted {
		at[i] = slices.IndexFunc(specs, func(s tensor.Spec) bool { return s.Name == w.Name })
		if at[i] < 0 {
			names := make([]string, len(specs))
			for j := range specs {
				names[j] = strconv.Quote(specs[j].Name)
			}
			return nil, fmt.Errorf("%w: output %q is not one of model %q; it gives %s",
				scheduler.ErrInvalidInput, w.Name, t.ID.Name, strings.Join(names, ", "))
		}
		if slices.Contains(at[:i], at[i]) {
			return nil, fmt.Errorf("%w: output %q is asked for twice", scheduler.ErrInvalidInput, w.Name)
		}
		if w.Classes < 0 {
			return nil, fmt.Errorf("%w: output %q: classification %d, expected 1 or more", scheduler.ErrInvalidInput, w.Name, w.Classes)
		}
		if d := specs[at[i]].DType; w.Classes > 0 && !d.Ordered() {
			return nil, fmt.Errorf("%w: output %q: classification is for real numbers, and it is %s", scheduler.ErrInvalidInput, w.Name, d.V2())
		}
	}
	return at, nil
}
