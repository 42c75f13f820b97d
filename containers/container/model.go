package container

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A Model describes the model that Serve serves. Name, Version, Outputs and Predict are required,
// and Inputs unless the model takes none.
type Model struct {
	Name, Version string
	// Inputs and Outputs declare the tensors. An output's Labels name its classes for clients that
	// request a classification, and an input's Format is the order of an image's dimensions. An
	// input with an Image may also arrive as Bytes: a JPEG or PNG file for each row, of which the
	// server has checked the header. Predict decodes and resizes the files, and calls
	// [Batch.Refuse] for a row that it cannot decode. With Image.Regions it also cuts regions out
	// of them: see [Batch.Regions]. A model may have no inputs: each request is
	// then one row, and [Batch.Rows] is all that says how many to return.
	Inputs, Outputs []tensor.Spec
	// Batched true means that the first dimension of all tensors is -1 and counts the rows of a
	// batch (for a ragged output, the values of all rows together). False means that Predict gets
	// one request at a time, in the shapes that the client sent; any dimension may be -1, inputs
	// may be optional, and sizes 0. It may be nil where the declaration is unambiguous: see
	// [Model.Ambiguity].
	Batched *bool
	// Predict computes a batch (for a function of one row, see [PerRow]). It returns one tensor for
	// each declared output, in that order, with b.Rows rows each; names may be empty. An error
	// fails the whole batch (rows of several requests are then tried again in halves, unless the
	// server is configured otherwise); [Batch.Fail] fails single rows. A panic counts as an error;
	// runtime.Goexit ends the process.
	// ctx ends when DrainTimeout is over; it carries the batch's OpenTelemetry span if the server
	// traces one of its requests. See the package comment for the ownership of memory.
	Predict func(ctx context.Context, b *Batch) ([]tensor.Tensor, error)

	// The other fields are optional.

	// WarmUp is called once before the first connection, so the model gets no requests before it
	// returns.
	WarmUp func(ctx context.Context) error
	// Health is called every HealthInterval (default 5 s), concurrently with Predict. While it
	// returns an error the model leaves its servers: batches in flight are answered, no more are
	// accepted, and Serve reconnects once Health returns nil.
	Health         func(ctx context.Context) error
	HealthInterval time.Duration
	// MaxBatch is the largest batch that the model accepts, in rows. 0 leaves it to the server.
	MaxBatch int
	// Concurrency is the number of Predicts that may run at once, at most 64. It is declared to
	// the server, which sends as many batches. 0 means 1.
	Concurrency int
	// Slots is the number of batches that the server may have in flight here, at most 64. 0 leaves
	// it to the server, which uses Concurrency and one more: the extra one is received while others
	// compute.
	Slots int
	// User requests the user of each request: the server adds "user" to its parameters if the
	// client named one. Cached answers are then separate for each user.
	User bool
	// Metadata requests the metadata of each request, for [Batch.Metadata].
	Metadata bool
	// Feedback, if not nil, is called with the feedback that applications receive about this
	// model's answers, concurrently with Predict but one call at a time. Delivery is at most
	// once: feedback that arrives faster than Feedback returns is dropped. An error or a panic is
	// logged and has no other effect. All replicas with a Feedback receive it. ctx ends when
	// DrainTimeout is over.
	Feedback func(ctx context.Context, f *Feedback) error
	// WritableInputs lets Predict write its inputs. Without it inputs can lie in memory that is
	// shared with the server and read-only: writing there fails the batch, or ends the process if a
	// goroutine other than Predict's does it.
	WritableInputs bool
	// Bytes sends and receives all tensors as bytes, even where shared memory is available.
	Bytes bool
	// Token shows servers who the container is; "" means the token of the environment, see package
	// token. A file that the environment names is read again for each session.
	Token string
	// TLS configures TLS with servers at "tls://host:port": trusted certificates, the container's
	// own, and the name of the server if it is not the host. nil means the configuration of the
	// environment (see TLSCAEnv), and otherwise the system's authorities and no certificate. Serve
	// makes a copy for each connection, so GetClientCertificate may return a renewed certificate.
	// It is an error to set TLS without a tls:// address.
	TLS *tls.Config
	// Subset is the number of servers with which the container has sessions if the name that Serve
	// was given resolves to more. Containers have different subsets, and servers have about as many
	// containers each; with Subset × containers at 3 × servers no server is without one for long
	// (server/manual/containers.md). 0 means the value of the environment (SubsetEnv), or else
	// DefaultSubset. An address that is not a name is always one of the container's servers.
	Subset int
	// Platform and Instance are free text, shown to operators. Parameters is any JSON object.
	Platform, Instance string
	Parameters         json.RawMessage
	// DrainTimeout is the time from the end of Serve's ctx until the end of Predict's. Serve
	// returns at most two seconds after that, whatever Predict does. Default 30 s.
	DrainTimeout time.Duration
	// MessageBytes is the largest message accepted from a server. Default 1 GiB: several times
	// the server's largest batch.
	MessageBytes int64
	// Log receives connections, refusals and panics. nil means slog.Default().
	Log *slog.Logger
	// Dial opens connections; nil means TCP and Unix sockets. network is "tcp" or "unix"; TLS runs
	// on the connection that Dial returns.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	defaultDrainTimeout   = 30 * time.Second
	defaultHealthInterval = 5 * time.Second
	defaultMessageBytes   = 1 << 30
	maxSlots              = 64
)

// hello validates the required fields and returns the JSON of the registration, with a token. again
// reports whether the model was registered at the same address before. The server validates the
// rest.
func (m *Model) hello(token string, choice *wire.SubsetMessage, again bool) ([]byte, error) {
	var faults []error
	for _, f := range []struct {
		missing bool
		what    string
	}{
		{m.Name == "", "no name"}, {m.Version == "", "no version"}, {m.Predict == nil, "no Predict"},
		{len(m.Outputs) == 0, "no outputs"},
		{m.MaxBatch < 0, "MaxBatch is negative"},
		{m.Slots < 0 || m.Slots > maxSlots, fmt.Sprintf("Slots is not in 0..%d", maxSlots)},
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
		Batched: new(m.batched()), MaxBatch: m.MaxBatch, Concurrency: m.Concurrency, Slots: m.Slots,
		Parameters: m.Parameters, Instance: m.Instance, User: m.User, Metadata: m.Metadata,
		Feedback: m.Feedback != nil, Arena: !m.Bytes, Grants: true, Waits: true, Again: new(again), Subset: choice,
		Token: token,
	})
	if err != nil {
		return nil, fmt.Errorf("container: model %q: %w", m.Name, err)
	}
	return text, nil
}

// Ambiguity explains why Batched must be set for this model, with the ways to do so; "" if its
// declaration is unambiguous. A leading -1 counts rows if all other sizes are declared, as in
// [-1, 28, 28], or if MaxBatch is set. An input such as [-1] or [-1, -1, 3] could also be a
// single audio clip or image of any size, and an output of a model without inputs a list of any
// length; and if only some tensors lead with -1, the others may lack theirs by mistake.
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
		"or Batched: new(false) if each request is one item and no dimension counts rows"
	if leading != 0 && leading != all {
		return fmt.Sprintf("%d of %d inputs and outputs lead with -1, which could mean two things: %s",
			leading, all, ways)
	}
	if leading == 0 || m.MaxBatch > 1 {
		return ""
	}
	for _, t := range m.Inputs {
		if rest := t.Shape[1:]; len(rest) == 0 || slices.Contains(rest, -1) {
			return fmt.Sprintf("input %s could mean two things: %s", t, ways)
		}
	}
	if len(m.Inputs) == 0 {
		return fmt.Sprintf("output %s of a model without inputs could mean two things: %s", m.Outputs[0], ways)
	}
	return ""
}

// understood reports whether the server agrees about Batched. A server that does not know the key
// takes every leading -1 for rows.
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

// batched returns Batched, or the value that the shapes imply if it is nil.
func (m *Model) batched() bool {
	if m.Batched != nil {
		return *m.Batched
	}
	specs := m.Outputs // the shapes agree, see Ambiguity
	if len(m.Inputs) > 0 {
		specs = m.Inputs
	}
	return len(specs[0].Shape) > 0 && specs[0].Shape[0] == -1
}

// A Batch is the argument of Predict. It and everything in it belong to Predict until Predict
// returns.
type Batch struct {
	// ID is the server's number of the batch, for logs.
	ID uint64
	// Rows is the total number of rows; 1 for a model that is not batched.
	Rows int
	// Inputs are the declared inputs in order, with Rows as their first dimension. For a model
	// that is not batched they have the shapes that the client sent, and an absent optional one
	// has no Shape and no DType; see [Batch.Has].
	// After them comes one more for each input whose Image has Regions, in their order: FP32
	// [Rows, 4, 2], absent unless the rows are regions of that input, which then has as many rows
	// as the batch has pictures; see [Batch.Regions].
	Inputs []tensor.Tensor
	// Deadline is the earliest deadline of the requests; zero if none has one.
	Deadline time.Time
	// Requests has the rows of each request, in order; nil when each has one.
	Requests []int

	model   *Model
	pool    *tensor.Pool
	header  wire.BatchHeader
	message zmtp.Message
	out     zmtp.Outgoing
	present []bool           // inputs
	buffers []*tensor.Buffer // from Output, and of gathered inputs
	session *session         // nil: no server, or rows of several servers
	joint   *joint           // the joint that its rows are a part of; nil: it was executed alone
	queued  time.Duration    // time that it waited for another execution
	// Shared memory: mappings held until the batch is reset, and regions of outputs that no result
	// names.
	mappings []*mapping
	regions  []region
	cuts     []cut  // of pictures whose regions the rows are
	placed   []bool // outputs
	failed   []wire.RowError
}

// Has reports whether input i is present. Only optional ones, and those of regions, may be absent.
func (b *Batch) Has(i int) bool { return b.present[i] }

// Len is the number of requests in the batch.
func (b *Batch) Len() int {
	if b.Requests == nil {
		return b.Rows
	}
	return len(b.Requests)
}

// Parameters returns the parameters of request i, a JSON object, or nil.
func (b *Batch) Parameters(i int) json.RawMessage {
	if len(b.header.Parameters) == 0 {
		return nil
	}
	return b.header.Parameters[i]
}

// Metadata returns the metadata of request i that Parameters lacks, since the server reads these
// keys itself: a JSON object, or nil. Only a model with Metadata gets it.
func (b *Batch) Metadata(i int) json.RawMessage {
	if len(b.header.Metadata) == 0 {
		return nil
	}
	return b.header.Metadata[i]
}

// Priority returns the priority of request i, 0 (first) to 9.
func (b *Batch) Priority(i int) int {
	if len(b.header.Priority) == 0 {
		return 0
	}
	return b.header.Priority[i]
}

// Output returns a tensor for declared output i in memory from a pool, which is recycled once it
// has been sent. Its contents are undefined. The shape is the declared one. Its first dimension
// is the number of rows if the model is batched and the output not ragged; dims are the sizes of
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
			return tensor.Tensor{},
				fmt.Errorf("container: output %s: dims must have the sizes of the dimensions that are -1 and do not count rows",
					spec)
		default:
			n, dims = dims[0], dims[1:]
		}
		shape[k] = n
	}
	n, ok := shape.Elements()
	if !ok || len(dims) > 0 || spec.DType.Size() == 0 {
		return tensor.Tensor{},
			fmt.Errorf("container: output %q is declared %s %s: cannot make shape %s, as %d of dims are left over",
				spec.Name, spec.DType, spec.Shape, shape, len(dims))
	}
	if data := b.region(n * spec.DType.Size()); data != nil {
		return tensor.Tensor{Name: spec.Name, DType: spec.DType, Shape: shape, Data: data}, nil
	}
	buf, err := b.pool.Get(n * spec.DType.Size())
	if err != nil {
		return tensor.Tensor{}, err
	}
	b.buffers = append(b.buffers, buf)
	return tensor.Tensor{Name: spec.Name, DType: spec.DType, Shape: shape, Data: buf.Bytes()}, nil
}

// Fail marks a row as failed, with the reason; further calls for the row have no effect. The
// outputs must have all rows nevertheless; those of failed rows are dropped.
func (b *Batch) Fail(row int, err error) { b.fail(row, err, false) }

// Refuse is Fail for an invalid row, such as a picture that ends too early: its client gets
// InvalidInput in place of ContainerFailed.
func (b *Batch) Refuse(row int, err error) { b.fail(row, err, true) }

func (b *Batch) fail(row int, err error, invalid bool) {
	if slices.ContainsFunc(b.failed, func(e wire.RowError) bool { return e.Row == row }) {
		return
	}
	b.failed = append(b.failed, wire.RowError{Row: row, Message: []byte(err.Error()), Invalid: invalid})
}

// read parses the message of a batch: batch | id | JSON | a frame for each input.
func (b *Batch) read(now time.Time) error {
	if err := b.parse(); err != nil {
		return err
	}
	return b.load(now)
}

// parse parses the header.
func (b *Batch) parse() error {
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
	return nil
}

// load makes the tensors of a batch that arrived at the given time.
func (b *Batch) load(now time.Time) error {
	f, h := b.message.Frames, &b.header
	b.Rows, b.Requests, b.Deadline = h.Rows, h.Requests, time.Time{}
	if len(b.Requests) == 0 {
		b.Requests = nil
	}
	if h.Timeout > 0 {
		b.Deadline = now.Add(time.Duration(h.Timeout * float64(time.Millisecond)))
	}
	b.Inputs, b.present = b.Inputs[:0], b.present[:0]
	at := 0 // index among the inputs present, which are in the order of the declaration
	specs := b.model.inputs()
	for i := range specs {
		spec := &specs[i]
		t := tensor.Tensor{Name: spec.Name}
		here := at < len(h.Inputs) && string(h.Inputs[at].Name) == spec.Name
		if here {
			t.DType, t.Shape, t.Data = h.Inputs[at].DType, h.Inputs[at].Shape, f[3+at].Data
			if pieces := h.Inputs[at].At; len(pieces) > 0 {
				var err error
				if t.Data, err = b.input(pieces); err != nil {
					return fmt.Errorf("container: batch %d: input %q: %w", b.ID, t.Name, err)
				}
			}
			at++
			if !spec.Takes(t.DType) {
				return fmt.Errorf("container: batch %d has %s for input %q, declared %s",
					b.ID, t.DType, t.Name, spec.DType)
			}
			if err := t.Check(); err != nil {
				return fmt.Errorf("container: batch %d: input %q: %w", b.ID, t.Name, err)
			}
		} else if !spec.Optional {
			return fmt.Errorf("container: batch %d lacks input %q", b.ID, t.Name)
		}
		b.Inputs, b.present = append(b.Inputs, t), append(b.present, here)
	}
	if at < len(h.Inputs) {
		return fmt.Errorf("container: batch %d has an input %.64q, which is not declared or out of order",
			b.ID, h.Inputs[at].Name)
	}
	if len(specs) > len(b.model.Inputs) {
		return b.readCuts()
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
		h = jsonscan.AppendString(h, err.Error())
		o.Seal(append(h, '}'))
		return
	}
	if b.session != nil {
		b.session.echoes.Store(b.echoes(outputs))
	}
	h = append(h, `{"outputs":[`...)
	for i, t := range outputs {
		if i > 0 {
			h = append(h, ',')
		}
		h = wire.AppendTensor(h, b.model.Outputs[i].Name, t.DType, -1, t.Shape)
		at, ok := b.put(t.Data)
		if ok {
			h = wire.AppendAt(h, []wire.Piece{at})
		}
		b.placed = append(b.placed, ok)
	}
	h = append(h, ']')
	if b.joint != nil {
		h = wire.AppendTogether(h, b.joint.batch.Rows, b.queued.Microseconds())
	}
	if len(b.failed) > 0 {
		h = wire.AppendRowErrors(h, b.failed)
	}
	o.Seal(append(h, '}'))
	for i, t := range outputs {
		if b.placed[i] {
			t.Data = nil // an empty frame
		}
		o.Frame(t.Data)
	}
}

// check validates the outputs, where an error can still name the author's mistake.
func (b *Batch) check(outputs []tensor.Tensor) error {
	if err := b.model.check(outputs, b.Rows); err != nil {
		return err
	}
	for _, f := range b.failed {
		if f.Row < 0 || f.Row >= b.Rows {
			return fmt.Errorf("container: Fail was called for row %d of a batch of %s", f.Row,
				plural.Of(b.Rows, "row"))
		}
	}
	return nil
}

// check compares outputs for the given number of rows with the declaration.
func (m *Model) check(outputs []tensor.Tensor, rows int) error {
	if len(outputs) != len(m.Outputs) {
		return fmt.Errorf("container: Predict returned %s, %s declared", plural.Of(len(outputs), "output"),
			plural.Words(len(m.Outputs), "is", "are"))
	}
	for i := range outputs {
		t, spec := &outputs[i], &m.Outputs[i]
		if t.DType != spec.DType || !m.fits(t.Shape, spec, rows) {
			return fmt.Errorf("container: Predict returned %s %s for output %q, declared %s %s, for a batch of %s",
				t.DType, t.Shape, spec.Name, spec.DType, spec.Shape, plural.Of(rows, "row"))
		}
		if err := t.Check(); err != nil {
			return fmt.Errorf("container: output %q: %w", spec.Name, err)
		}
	}
	return nil
}

// call calls Predict. A panic becomes an error: one bad row must not end the process.
func (m *Model) call(ctx context.Context, b *Batch, log *slog.Logger) (outputs []tensor.Tensor, err error) {
	ctx, span := b.startSpan(ctx)
	defer func() { ended(span, err) }()
	defer func() {
		if r := recover(); r != nil {
			log.Error("container: Predict panicked", "panic", r, "stack", string(debug.Stack()))
			outputs, err = nil, fmt.Errorf("panic: %v", r)
			if fault, ok := r.(interface{ Addr() uintptr }); ok && b.session != nil &&
				b.session.sharing.holds(fault.Addr()) {
				err = errors.New("model: Predict wrote to an input in shared memory: set Model.WritableInputs")
			}
		}
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return m.Predict(ctx, b)
}

// exit ends the process; a variable for tests.
var exit = os.Exit

// serve is call for batches of a server. If Predict calls runtime.Goexit, as t.FailNow does, nobody
// can answer the batch or take the next one: the process ends at once, with the reason, instead of
// holding its server's batches until they time out.
func (m *Model) serve(ctx context.Context, b *Batch, log *slog.Logger) (outputs []tensor.Tensor, err error) {
	returned := false
	defer func() {
		if !returned {
			log.Error("container: Predict called runtime.Goexit, which ends the goroutine that serves; the process ends",
				"model", m.Name, "stack", string(debug.Stack()))
			exit(1)
		}
	}()
	outputs, err = m.call(ctx, b, log)
	returned = true
	return outputs, err
}

// fits reports whether a shape matches the declared one.
func (m *Model) fits(got tensor.Shape, spec *tensor.Spec, rows int) bool {
	if !got.Fits(spec.Shape) {
		return false
	}
	return !m.batched() || spec.Ragged != "" || got[0] == rows
}

// reset releases the batch's memory and prepares it for the next message.
func (b *Batch) reset() {
	b.message.Release()
	b.unshare()
	for i, buf := range b.buffers {
		buf.Release()
		b.buffers[i] = nil
	}
	clear(b.Inputs)
	if b.joint != nil {
		b.joint.release()
	}
	b.joint, b.queued, b.cuts = nil, 0, nil
	b.buffers, b.failed, b.Inputs, b.placed = b.buffers[:0], b.failed[:0], b.Inputs[:0], b.placed[:0]
}
