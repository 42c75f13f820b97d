package containers

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A codec knows the frames of one generation of the container protocol, and nothing else: no
// clock, no socket, no state of the session. Before registration it is the reader's; after it,
// batch may be called from several goroutines at once while the reader is in parse and result.
type codec interface {
	generation() string
	clocks(heartbeat time.Duration) clocks

	// parse says what a message is. An error ends the session; a *refusal is told to the
	// container first, where the generation has words for it.
	parse(m *zmtp.Message) (incoming, error)
	// bind tells the codec what was registered.
	bind(registration)
	// id is what the generation calls a batch.
	id(b *scheduler.Batch) uint64
	// batch builds the message for a batch. An error means that this batch cannot be said; the
	// session goes on.
	batch(o *zmtp.Outgoing, b *scheduler.Batch, now time.Time) error
	// result checks the answer to b against the declaration. The outputs hold references of
	// their own. An error is the container's failure on this batch.
	result(m *zmtp.Message, b *scheduler.Batch) (*answer, error)

	// These build a message of the server, or return false where the generation has none.
	heartbeat(o *zmtp.Outgoing, registered bool) bool
	welcome(o *zmtp.Outgoing, w wire.WelcomeMessage) bool
	refused(o *zmtp.Outgoing, reason string) bool
	goodbye(o *zmtp.Outgoing, reason string, reconnect bool) bool
	feedback(o *zmtp.Outgoing, f *scheduler.Feedback) bool
}

// An incoming is what a codec makes of a message from a container.
type incoming struct {
	event event
	id    uint64       // of a result
	hello registration // of a hello
}

// A registration is what a container says of itself, checked.
type registration struct {
	model scheduler.ModelID
	spec  scheduler.Spec
	label string // for people; may be empty
	// Batches that it executes at once, and that it wants in flight; 0: it does not say.
	concurrency, slots int
	serial             bool // by default it gets the next batch only after its answer
	announce           bool // it wants to be told of large messages before they come
	feedback           bool // it wants to be told what became of its answers
}

// An answer is what a result says, for Batch.Complete, which may keep it for a while (when Send
// has not returned yet): so each has its own memory, in one piece for as much as models usually
// have.
type answer struct {
	outputs []tensor.Tensor
	errors  []scheduler.RowError
	dims    []int

	outputSpace [1]tensor.Tensor
	dimSpace    [4]int
}

func newAnswer() *answer {
	a := new(answer)
	a.outputs, a.dims = a.outputSpace[:0], a.dimSpace[:0]
	return a
}

// add adds an output. one puts a leading 1 before the shape.
func (a *answer) add(name string, d tensor.DType, one bool, shape tensor.Shape, f zmtp.Frame) {
	from := len(a.dims)
	if one {
		a.dims = append(a.dims, 1)
	}
	a.dims = append(a.dims, shape...)
	a.outputs = append(a.outputs, tensor.Tensor{Name: name, DType: d, Shape: a.dims[from:len(a.dims):len(a.dims)], Data: f.Data, Buf: f.Buf})
}

// A refusal is an error of registration, in words for the author of the container.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// recognise tells the generation from the first message of a connection, and from the dialect
// of the address where the first message does not say.
//
// The legacy generations begin with an empty frame, v4 with a word. Among the legacy ones a
// message that has a type is v2's or v3's, and names where a message type should be are v1's.
func recognise(m *zmtp.Message, d Dialect, limits Limits, pool *tensor.Pool) (codec, error) {
	f := m.Frames
	if len(f[0].Data) > 0 {
		return &v4{limits: limits}, nil // which knows its kinds, and names a first frame that is none
	}
	base := legacy{limits: limits, pool: pool}
	t, typed := messageType(f)
	switch {
	case len(f) == 3 && (typed || len(f[1].Data) == 8): // Java's ids have 8 bytes
		return nil, errComesBack
	case typed && t <= typeHeartbeat && (d == DialectV2 || d == DialectV2a):
		return &v2{legacy: base, floats: d == DialectV2a}, nil
	case typed && t == typeRegister && len(f) == 5:
		return nil, errV2
	case typed && t <= typeHeartbeat:
		return &v3{base}, nil
	case len(f) == 4:
		return &v1{legacy: base, sized: d == DialectV1b}, nil
	}
	return nil, fmt.Errorf("first message has %d frames and begins with an empty one: no known RPC version", len(f))
}
