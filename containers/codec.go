package containers

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// A codec knows the frames of one generation of the container protocol, and nothing else: no
// clock, no socket, no session state. Before registration only the reader uses it; after that
// batch may be called from several goroutines at once, while the reader calls parse and result.
type codec interface {
	generation() string
	clocks(heartbeat time.Duration) clocks

	// parse classifies a message. An error ends the session; a *refusal is sent to the container
	// first, if the generation has a message for it.
	parse(m *zmtp.Message) (incoming, error)
	// bind gives the codec the registration.
	bind(registration)
	// id returns the generation's identifier of a batch.
	id(b *scheduler.Batch) uint64
	// batch builds the message for a batch. An error means that the generation cannot carry this
	// batch; the session continues.
	batch(o *zmtp.Outgoing, b *scheduler.Batch, now time.Time) error
	// result parses the answer to b and checks it against the declaration. The outputs hold
	// references of their own. An error fails this batch.
	result(m *zmtp.Message, b *scheduler.Batch) (*answer, error)
	// drop frees the shared memory named by an answer that completes no batch.
	drop(m *zmtp.Message)

	// These methods build a message of the server, or return false if the generation has no such
	// message.
	heartbeat(o *zmtp.Outgoing, registered bool) bool
	welcome(o *zmtp.Outgoing, w wire.WelcomeMessage) bool
	refused(o *zmtp.Outgoing, reason string) bool
	goodbye(o *zmtp.Outgoing, reason string, reconnect bool) bool
	feedback(o *zmtp.Outgoing, f *scheduler.Feedback) bool
}

// An incoming is a parsed message from a container.
type incoming struct {
	event event
	id    uint64            // of a result
	hello registration      // of a hello
	arena wire.ArenaMessage // of evArena
	grant wire.GrantMessage // of evGrant
}

// A registration is a container's validated declaration.
type registration struct {
	model scheduler.ModelID
	spec  scheduler.Spec
	label string // for operators; may be empty
	// Batches that it executes at once, and that it wants in flight; 0: not declared.
	concurrency, slots int
	serial             bool   // by default it gets the next batch only after its answer
	announce           bool   // large messages to it are announced by a heartbeat
	feedback           bool   // it wants feedback on its answers
	pauses             bool   // an interpreter lock may keep it from answering PINGs
	arena              bool   // it takes tensors in shared memory
	opens              bool   // it hands pictures on that it has decoded, and takes them
	grants             bool   // it grants batches while several servers have it
	waits              bool   // it may be told to wait for its place
	again              *bool  // it was registered with a server here before; nil: unknown
	subset             Subset // its servers, of those that it knows; zero: all of them
	token              string // "": it shows none, or its generation has none
}

// An answer is a parsed result, for Batch.Complete, which may retain it until Send returns. So
// each has memory of its own, in one allocation for the usual number of outputs.
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

// add adds an output. one prepends a dimension of 1 to the shape.
func (a *answer) add(name string, d tensor.DType, one bool, shape tensor.Shape, f zmtp.Frame) {
	from := len(a.dims)
	if one {
		a.dims = append(a.dims, 1)
	}
	a.dims = append(a.dims, shape...)
	a.outputs = append(a.outputs,
		tensor.Tensor{Name: name, DType: d, Shape: a.dims[from:len(a.dims):len(a.dims)], Data: f.Data, Buf: f.Buf})
}

// release releases the memory of the outputs.
func (a *answer) release() {
	for i := range a.outputs {
		a.outputs[i].Release()
	}
}

// A refusal is an error of registration, worded for the author of the container.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// recognise determines the generation from the first message of a connection, and from the
// dialect of the address where that message is ambiguous.
//
// Messages of the legacy generations begin with an empty frame, those of v4 with a word. Among
// the legacy ones, v2 and v3 have a message type next, and v1 has a name.
func recognise(m *zmtp.Message, d Dialect, limits Limits, pool *tensor.Pool) (codec, error) {
	f := m.Frames
	if len(f[0].Data) > 0 {
		return &v4{limits: limits}, nil // its parse refuses unknown kinds
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
	return nil, fmt.Errorf("first message has %s, the first of them empty: no known RPC version",
		plural.Of(len(f), "frame"))
}
