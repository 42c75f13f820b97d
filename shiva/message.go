package shiva

import (
	"sync"

	"github.com/shivad/shivad/shiva/tensor"
)

// DefaultPort is the TCP port of a server unless configured otherwise.
const DefaultPort = 6174

// Namespaces that begin with "!" are reserved. ErrorNamespace is the namespace of an answer that
// reports an error; the others are requests to the server itself, without tensors, answered in
// metadata.
const (
	ErrorNamespace  = "!error"
	LiveNamespace   = "!live"
	ReadyNamespace  = "!ready"
	ServerNamespace = "!server"
	ModelsNamespace = "!models"
	WhoAmINamespace = "!whoami"
)

// TokenKey is the metadata key, in the first request of a connection, of the token that identifies
// the client.
const TokenKey = "token"

// A Message is one message of the protocol, in either direction.
//
// Metadata is the text of a JSON object, or empty, which means {}. Tensor names are not part of the
// layout: by convention they travel in metadata under [NamesKey], which [NewRequest] writes and
// Output reads. The encoders ignore the Name of a tensor, and the Decoder leaves it empty.
//
// A Message from the [Decoder] or the [Client] owns its memory: Metadata and the bytes of all
// Tensors are valid until Release, and one goroutine at a time may use it. The fields may be
// changed; Release returns the memory that was received, whatever the fields hold by then. A
// Message that you made owns nothing.
type Message struct {
	Namespace string
	Metadata  []byte
	Tensors   []tensor.Tensor

	bufs     []*tensor.Buffer // one reference each
	dims     []int            // the memory of the shapes
	received bool             // made by a Decoder, not yet released
}

// maxKeptTensors bounds what an idle Message keeps for its next use.
const maxKeptTensors = 32

var messages = sync.Pool{New: func() any { return new(Message) }}

func newMessage() *Message {
	m := messages.Get().(*Message)
	m.received = true
	return m
}

// Release returns the memory of a received message. Afterwards, use nothing of the Message except
// the Namespace string and the Data of tensors that were retained. Their Shapes belong to the
// message: clone the Shape of a tensor that you retain. Call Release once. On a message that was
// not received it does nothing.
func (m *Message) Release() {
	if !m.received {
		if tensor.Invariants && m.bufs != nil {
			panic(tensor.Violation("shiva: second release of a message"))
		}
		return
	}
	m.received = false
	for i, b := range m.bufs {
		b.Release()
		m.bufs[i] = nil
	}
	if tensor.Invariants {
		// The Message is never reused, so that a second release is detected, and so is a read.
		*m = Message{Namespace: "released", bufs: []*tensor.Buffer{}}
		return
	}
	m.Namespace, m.Metadata = "", nil
	m.bufs = m.bufs[:0]
	if cap(m.Tensors) > maxKeptTensors {
		m.Tensors, m.dims, m.bufs = nil, nil, nil
	}
	clear(m.Tensors[:cap(m.Tensors)])
	m.Tensors, m.dims = m.Tensors[:0], m.dims[:0]
	messages.Put(m)
}

// own takes over one reference to b.
func (m *Message) own(b *tensor.Buffer) { m.bufs = append(m.bufs, b) }
