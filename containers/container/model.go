package container

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Model is what Serve serves. Name, Version, Inputs, Outputs and Predict are required.
type Model struct {
	Name, Version string
	// Inputs and Outputs declare the tensors. An output's Labels name its classes for clients
	// that ask for a classification, and an input's Format says the order of an image's
	// dimensions.
	Inputs, Outputs []tensor.Spec
	// Batched true: all tensors have -1 for their first dimension, which counts the rows of a
	// batch (but of a ragged output, whose first dimension is that of all rows' values
	// together). False: Predict gets one request at a time, in the shapes that the client sent,
	// with any -1; inputs may be optional, and dimensions 0. It may be left nil where the
	// declaration can only mean one of the two: see [Model.Ambiguity].
	Batched *bool
	// Predict computes a batch (for a function of one row, see [PerRow]): one tensor for each
	// declared output, in that order, with b.Rows rows each. Names may be left empty. An error
	// fails the whole batch (rows of several requests are then tried again one by one, unless
	// the server is told otherwise); [Batch.Fail] fails single rows. A panic is an error too.
	// ctx ends when the time for draining is over. See the package's comment for who owns which
	// memory.
	Predict func(ctx context.Context, b *Batch) ([]tensor.Tensor, error)

	// The rest is optional.

	// WarmUp is called once before the first connection: the model is not routable before it
	// returns.
	WarmUp func(ctx context.Context) error
	// Health is asked every HealthInterval (default 5 s), beside Predict. While it returns an
	// error the model is signed off: what was sent is answered, nothing more is taken, and
	// Serve connects again when Health is content.
	Health         func(ctx context.Context) error
	HealthInterval time.Duration
	// MaxBatch is the largest batch the model takes. 0 leaves it to the server.
	MaxBatch int
	// Concurrency is how many Predicts may run at once, at most 64. The server is told, and sends
	// as many batches. 0 means 1.
	Concurrency int
	// Slots is how many batches the server may have under way here. 0 leaves it to the server,
	// which uses one more than Concurrency: the next one is received while others compute.
	Slots int
	// User asks for whose request each is: the server adds "user" to its parameters, if it
	// names one. Answers are then kept for each user apart, where the server keeps any.
	User bool
	// Feedback asks for what applications are told of this model's answers, and is called with
	// it: beside Predict, one at a time. Nobody waits for it and nothing is sent twice; what
	// comes faster than it returns is dropped. An error or a panic is logged, and costs nobody
	// anything. All replicas that ask are told. ctx ends when the time for draining is over.
	Feedback func(ctx context.Context, f *Feedback) error
	// Platform and Instance are shown to operators: free text. Parameters is a free JSON object.
	Platform, Instance string
	Parameters         json.RawMessage
	// DrainTimeout bounds the time from the end of Serve's ctx until that of Predict's. Serve
	// returns two seconds after that at the latest, whatever Predict does. Default 30 s.
	DrainTimeout time.Duration
	// MessageBytes is the largest message that a server may send. Default 1 GiB: several times
	// the server's largest batch.
	MessageBytes int64
	// Log gets connections, refusals and panics. nil means slog.Default().
	Log *slog.Logger
	// Dial makes connections; nil means TCP and Unix sockets. network is "tcp" or "unix".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultDrainTimeout   = 30 * time.Second
	defaultHealthInterval = 5 * time.Second
	defaultMessageBytes   = 1 << 30
	maxSlots              = 64
)

// hello checks what must be there and makes the registration. The server checks the rest, and
// says what it does not like.
func (m *Model) hello() ([]byte, error) {
	var faults []error
	for _, f := range []struct {
		missing bool
		what    string
	}{
		{m.Name == "", "no name"}, {m.Version == "", "no version"}, {m.Predict == nil, "no Predict"},
		{len(m.Inputs) == 0, "no inputs"}, {len(m.Outputs) == 0, "no outputs"},
		{m.MaxBatch < 0, "MaxBatch is negative"}, {m.Slots < 0 || m.Slots > maxSlots, fmt.Sprintf("Slots is not in 0..%d", maxSlots)},
		{m.Concurrency < 0 || m.Concurrency > maxSlots, fmt.Sprintf("Concurrency is not in 0..%d", maxSlots)},
	} {
		if f.missing {
			faults = append(faults, errors.New(f.what))
		}
	}
	if text := m.Ambiguity(); text != "" {
		faults = append(faults, errors.New(text))
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("container: model %q: %w", m.Name, errors.Join(faults...))
	}
	text, err := json.Marshal(wire.HelloMessage{
		Protocol: wire.Version, Model: m.Name, Version: m.Version, Platform: m.Platform,
		Inputs: wire.Declare(m.Inputs), Outputs: wire.Declare(m.Outputs),
		Batched: new(m.batched()), MaxBatch: m.MaxBatch, Concurrency: m.Concurrency, Slots: m.Slots, Parameters: m.Parameters, Instance: m.Instance, User: m.User,
		Feedback: m.Feedback != nil,
	})
	if err != nil {
		return nil, fmt.Errorf("container: model %q: %w", m.Name, err)
	}
	return text, nil
}

// Ambiguity says what is not clear of a model that leaves Batched nil, with what there is to
// choose from; "" if nothing is. A leading -1 counts rows where each row has a size that is
// declared, as in [-1, 28, 28], or where MaxBatch says that there are several. An input such as
// [-1] or [-1, -1, 3] could as well be one clip or one picture of any size; and where only some
// tensors lead with -1, others may have lost theirs.
func (m *Model) Ambiguity() string {
	if m.Batched != nil {
		return ""
	}
	all, leading := 0, 0
	for _, io := range [][]tensor.Spec{m.Inputs, m.Outputs} {
		for _, t := range io {
			all++
			if len(t.Shape) > 0 && t.Shape[0] == -1 {
				leading++
			}
		}
	}
	const ways = "say Batched: new(true) if the first dimension of every tensor counts rows, one for each item to be answered, " +
		"or Batched: new(false) if each request is one item and its shape is what it is"
	if leading != 0 && leading != all {
		return fmt.Sprintf("%d of %d inputs and outputs lead with -1, which could mean two things: %s", leading, all, ways)
	}
	if leading == 0 || m.MaxBatch > 1 {
		return ""
	}
	for _, t := range m.Inputs {
		if rest := t.Shape[1:]; len(rest) == 0 || slices.Contains(rest, -1) {
			return fmt.Sprintf("input %s could mean two things: %s", t, ways)
		}
	}
	return ""
}

// understood reports whether a server takes the model for what it is. One that does not know
// Batched takes every leading -1 for rows.
func (m *Model) understood(w wire.WelcomeMessage) bool {
	if w.Batched != nil {
		return *w.Batched == m.batched()
	}
	leading := true
	for _, io := range [][]tensor.Spec{m.Inputs, m.Outputs} {
		for _, t := range io {
			if t.Ragged != "" {
				return false
			}
			leading = leading && len(t.Shape) > 0 && t.Shape[0] == -1
		}
	}
	return m.batched() || !leading
}

// batched reports what the model is: as it says, or as its shapes tell.
func (m *Model) batched() bool {
	if m.Batched != nil {
		return *m.Batched
	}
	return len(m.Inputs[0].Shape) > 0 && m.Inputs[0].Shape[0] == -1
}

// A Batch is what Predict gets. It and everything in it belong to Predict until it returns.
type Batch struct {
	// ID is the server's number of the batch, for logs.
	ID uint64
	// Rows is the number of rows in all; 1 for a model without a batch dimension.
	Rows int
	// Inputs are the declared inputs in order, with Rows as their first dimension. Of a model
	// that is not batched they are as the client sent them, and an optional one that did not
	// come has no Shape and no DType; see [Batch.Has].
	Inputs []tensor.Tensor
	// Deadline is when the first of the requests wants its answer; zero if none does.
	Deadline time.Time
	// Requests has the rows of each request, in order; nil when each has one.
	Requests []int

	model   *Model
	pool    *tensor.Pool
	header  wire.BatchHeader
	message zmtp.Message
	out     zmtp.Outgoing
	came    []bool           // inputs
	buffers []*tensor.Buffer // from Output
	failed  []wire.RowError
}

// Has reports whether input i came. Only optional ones may not.
func (b *Batch) Has(i int) bool { return b.came[i] }

// Len is the number of requests in the batch.
func (b *Batch) Len() int {
	if b.Requests == nil {
		return b.Rows
	}
	return len(b.Requests)
}

// Parameters returns the JSON object that request i was sent with, or nil.
func (b *Batch) Parameters(i int) json.RawMessage {
	if len(b.header.Parameters) == 0 {
		return nil
	}
	return b.header.Parameters[i]
}

// Priority returns the priority of request i, 0 (first) to 9.
func (b *Batch) Priority(i int) int {
	if len(b.header.Priority) == 0 {
		return 0
	}
	return b.header.Priority[i]
}

// Output returns memory for declared output i, taken from a pool and given back once it has
// been sent. Its contents are undefined. The shape is the declared one with the rows for its
// first dimension, if the model is batched and the output not ragged; dims gives the sizes of
// all other dimensions declared as -1, in order. For Bytes outputs use tensor.FromStrings.
func (b *Batch) Output(i int, dims ...int) (tensor.Tensor, error) {
	spec := b.model.Outputs[i]
	shape := make(tensor.Shape, len(spec.Shape))
	for k, n := range spec.Shape {
		switch {
		case n >= 0:
		case k == 0 && b.model.batched() && spec.Ragged == "":
			n = b.Rows
		case len(dims) == 0:
			return tensor.Tensor{}, fmt.Errorf("container: output %s: give the sizes of the dimensions that are -1 and do not count rows", spec)
		default:
			n, dims = dims[0], dims[1:]
		}
		shape[k] = n
	}
	n, ok := shape.Elements()
	if !ok || len(dims) > 0 || spec.DType.Size() == 0 {
		return tensor.Tensor{}, fmt.Errorf("container: output %q is declared %s %s: no memory for shape %s with %d sizes left over", spec.Name, spec.DType, spec.Shape, shape, len(dims))
	}
	buf, err := b.pool.Get(n * spec.DType.Size())
	if err != nil {
		return tensor.Tensor{}, err
	}
	b.buffers = append(b.buffers, buf)
	return tensor.Tensor{Name: spec.Name, DType: spec.DType, Shape: shape, Data: buf.Bytes()}, nil
}

// Fail says that a row has no result, and why; the first reason counts. The outputs must have
// all rows nevertheless; those of failed ones are dropped.
func (b *Batch) Fail(row int, err error) {
	if slices.ContainsFunc(b.failed, func(e wire.RowError) bool { return e.Row == row }) {
		return
	}
	b.failed = append(b.failed, wire.RowError{Row: row, Message: []byte(err.Error())})
}

// read makes the batch of a message: batch | id | JSON | a frame for each input.
func (b *Batch) read(now time.Time) error {
	f := b.message.Frames
	if len(f) < 3 || len(f[1].Data) != wire.IDSize {
		return fmt.Errorf("container: batch of %d frames, expected batch | id (8 bytes) | JSON | tensors", len(f))
	}
	b.ID = binary.LittleEndian.Uint64(f[1].Data)
	h := &b.header
	if err := h.Parse(f[2].Data); err != nil {
		return fmt.Errorf("container: %w", err)
	}
	if len(f) != 3+len(h.Inputs) {
		return fmt.Errorf("container: batch %d describes %d inputs in %d frames", b.ID, len(h.Inputs), len(f)-3)
	}
	b.Rows, b.Requests, b.Deadline = h.Rows, h.Requests, time.Time{}
	if len(b.Requests) == 0 {
		b.Requests = nil
	}
	if h.Timeout > 0 {
		b.Deadline = now.Add(time.Duration(h.Timeout * float64(time.Millisecond)))
	}
	b.Inputs, b.came = b.Inputs[:0], b.came[:0]
	at := 0 // of the inputs that arrived, which are in the order declared
	for i := range b.model.Inputs {
		spec := &b.model.Inputs[i]
		t := tensor.Tensor{Name: spec.Name}
		here := at < len(h.Inputs) && string(h.Inputs[at].Name) == spec.Name
		if here {
			t.DType, t.Shape, t.Data = h.Inputs[at].DType, h.Inputs[at].Shape, f[3+at].Data
			at++
			if t.DType != spec.DType {
				return fmt.Errorf("container: batch %d has %s for input %q, declared %s", b.ID, t.DType, t.Name, spec.DType)
			}
			if err := t.Check(); err != nil {
				return fmt.Errorf("container: batch %d: input %q: %w", b.ID, t.Name, err)
			}
		} else if !spec.Optional {
			return fmt.Errorf("container: batch %d is without input %q", b.ID, t.Name)
		}
		b.Inputs, b.came = append(b.Inputs, t), append(b.came, here)
	}
	if at < len(h.Inputs) {
		return fmt.Errorf("container: batch %d has an input %.64q, which is not declared, or not in its place", b.ID, h.Inputs[at].Name)
	}
	return nil
}

// write builds the answer: the outputs, or err.
func (b *Batch) write(outputs []tensor.Tensor, err error) {
	if err == nil {
		err = b.check(outputs)
	}
	o := &b.out
	o.Reset()
	o.FrameString(wire.Result)
	var id [wire.IDSize]byte
	binary.LittleEndian.PutUint64(id[:], b.ID)
	o.Begin(len(id))
	o.Copy(id[:])
	h := o.Open()
	if err != nil {
		h = append(h, `{"error":`...)
		h = wire.AppendString(h, err.Error())
		o.Seal(append(h, '}'))
		return
	}
	h = append(h, `{"outputs":[`...)
	for i, t := range outputs {
		if i > 0 {
			h = append(h, ',')
		}
		h = wire.AppendTensor(h, b.model.Outputs[i].Name, t.DType, -1, t.Shape)
	}
	h = append(h, ']')
	if len(b.failed) > 0 {
		h = wire.AppendRowErrors(h, b.failed)
	}
	o.Seal(append(h, '}'))
	for _, t := range outputs {
		o.Frame(t.Data)
	}
}

// check finds the author's mistakes where they can be named best.
func (b *Batch) check(outputs []tensor.Tensor) error {
	if err := b.model.check(outputs, b.Rows); err != nil {
		return err
	}
	for _, f := range b.failed {
		if f.Row < 0 || f.Row >= b.Rows {
			return fmt.Errorf("container: Fail was called for row %d of a batch of %d rows", f.Row, b.Rows)
		}
	}
	return nil
}

// check holds outputs for so many rows against the declaration.
func (m *Model) check(outputs []tensor.Tensor, rows int) error {
	if len(outputs) != len(m.Outputs) {
		return fmt.Errorf("container: Predict returned %d outputs, %d are declared", len(outputs), len(m.Outputs))
	}
	for i := range outputs {
		t, spec := &outputs[i], &m.Outputs[i]
		if t.DType != spec.DType || !m.fits(t.Shape, spec, rows) {
			return fmt.Errorf("container: Predict returned %s %s for output %q, declared %s %s, for a batch of %d rows", t.DType, t.Shape, spec.Name, spec.DType, spec.Shape, rows)
		}
		if err := t.Check(); err != nil {
			return fmt.Errorf("container: output %q: %w", spec.Name, err)
		}
	}
	return nil
}

// call calls Predict. A panic is its error: one bad row must not end the process.
func (m *Model) call(ctx context.Context, b *Batch, log *slog.Logger) (outputs []tensor.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Error("container: Predict panicked", "panic", r, "stack", string(debug.Stack()))
			outputs, err = nil, fmt.Errorf("panic: %v", r)
		}
	}()
	return m.Predict(ctx, b)
}

// fits reports whether a shape is one that an output may have.
func (m *Model) fits(got tensor.Shape, spec *tensor.Spec, rows int) bool {
	if !got.Fits(spec.Shape) {
		return false
	}
	return !m.batched() || spec.Ragged != "" || got[0] == rows
}

// reset gives the batch's memory back and makes it ready for the next one.
func (b *Batch) reset() {
	b.message.Release()
	for i, buf := range b.buffers {
		buf.Release()
		b.buffers[i] = nil
	}
	clear(b.Inputs)
	b.buffers, b.failed, b.Inputs = b.buffers[:0], b.failed[:0], b.Inputs[:0]
}
