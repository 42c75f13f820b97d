package shiva

import (
	"sync"

	"github.com/shivad/shivad/shiva/tensor"
)

// DefaultPort is the TCP port of a server unless configured otherwise.
const DefaultPort = 6174

// Namespaces that begin with "!" are reserved. ErrorNamespace is the namespace of an answer that
// reports a fault; the others are questions to the server itself, without tensors, answered in
// metadata.
const (
	ErrorNamespace  = "!error"
	LiveNamespace   = "!live"
	ReadyNamespace  = "!ready"
	ServerNamespace = "!server"
	ModelsNamespace = "!models"
	WhoAmINamespace = "!whoami"
)

// TokenKey is the key, in the metadata of a connection's first request, of the token that
// identifies the client.
const TokenKey = "token"

// A Message is one message of the protocol, in either direction.
//
// Metadata is the text of a JSON object, or empty, which means the same as {}. The names of
// Tensors are not part of the layout: by convention they travel in metadata as [NamesKey], which
// [NewRequest] writes and Output reads. The encoders ignore them, and the Decoder sets none.
//
// A Message from the [Decoder] or the [Client] owns its memory: Metadata and the bytes of all
// Tensors are valid until Release, and one goroutine at a time may use it. The fields may be
// changed; Release returns what was received, whatever the fields hold by then. A Message that you
// made owns nothing.
type Message struct {
	Namespace string
	Metadata  []byte
	Tensors   []tensor.Tensor

	bufs     []*tensor.Buffer // one reference each
	dims     []int            // behind the shapes
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

// Release returns the memory of a received message. Nothing of the Message may be used afterwards,
// except the Namespace string and the Data of tensors that were retained. Their Shapes belong to
// the message: clone the Shape of a tensor that you retain. Call Release once. It does nothing to a
// message that was not received.
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
		// It is never used again, so that a second release is noticed, and so is a read.
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
