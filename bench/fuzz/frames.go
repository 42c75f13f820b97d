package main

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// model is the name of the model on overSockets' server.
const model = "small"

// A mutator makes messages of Shiva that are nearly right.
type mutator struct {
	rng  *rand.Rand
	base [][]byte
	// fatal is the chance of a fault in the framing of a message: for a decoder one in three, for a
	// socket one in two hundred, as each costs a connection.
	fatal float64
}

// newMutator makes a mutator. It starts from messages of every type and of several tensors, with
// and without metadata, to an existing model and to missing ones, and requests to the server
// itself.
func newMutator(seed uint64, fatal float64) (*mutator, error) {
	m := &mutator{rng: rand.New(rand.NewPCG(seed, 3)), fatal: fatal}
	add := func(name, metadata string, tensors ...tensor.Tensor) error {
		wire, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: name, Metadata: []byte(metadata), Tensors: tensors})
		m.base = append(m.base, wire)
		return err
	}
	var all []tensor.Tensor
	for code := range byte(255) {
		d, ok := tensor.FromWire(code)
		if !ok {
			continue
		}
		x, err := tensor.New(d, tensor.Shape{2, 3}, make([]byte, 6*d.Size()))
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	right, err := tensor.FromSlice(tensor.Shape{16}, make([]float32, 16))
	if err != nil {
		return nil, err
	}
	const metadata = `{"id":1234567,"timeout_ms":9000,"priority":3,"parameters":{"k":[1,{"x":null}]}}`
	for _, x := range all {
		if err := add(model, metadata, x); err != nil {
			return nil, err
		}
	}
	for range len(all) { // as many correct ones
		if err := add(model, metadata, right); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{shiva.LiveNamespace, shiva.ReadyNamespace, shiva.ServerNamespace, shiva.ModelsNamespace, "v2/models/" + model, "none", "", model + "/update"} {
		if err := add(name, `{"id":1234567}`, right); err != nil {
			return nil, err
		}
	}
	return m, add(model, "", all...)
}

const shivaHeader = 12

// next appends a message to b, changed in one of several ways, or not.
func (m *mutator) next(b []byte) []byte {
	from := len(b)
	b = append(b, m.base[m.rng.IntN(len(m.base))]...)
	wire := b[from:]
	if m.rng.Float64() >= m.fatal {
		m.content(wire)
		return b
	}
	at := m.rng.IntN(len(wire))
	switch m.rng.IntN(6) {
	case 0: // one bit, anywhere
		wire[at] ^= 1 << m.rng.IntN(8)
	case 1: // one byte
		wire[at] = byte(m.rng.Uint32())
	case 2: // a size of the header, with right checksums
		m.resize(wire)
	case 3: // a dimension
		if at := shivaHeader + 2 + 4*m.rng.IntN(4); at+4 <= len(wire) {
			binary.BigEndian.PutUint32(wire[at:], m.size())
		}
	case 4: // cut
		b = b[:from+at]
	case 5: // a rank, a type
		if shivaHeader+2 <= len(wire) {
			wire[shivaHeader+m.rng.IntN(2)] = byte(m.rng.Uint32())
		}
	}
	return b
}

// content changes a message without its framing: bytes of values, metadata and name, which are at
// the end.
func (m *mutator) content(wire []byte) {
	end := int(binary.BigEndian.Uint32(wire[4:])) + int(wire[9]) // bytes of metadata and name
	if end == 0 || m.rng.IntN(2) == 0 {
		return
	}
	for range 1 + m.rng.IntN(2) {
		wire[len(wire)-1-m.rng.IntN(end)] = byte(m.rng.Uint32())
	}
}

// size returns a size that is small, or near a power of two, or arbitrary.
func (m *mutator) size() uint32 {
	switch n := m.rng.Uint32(); n % 4 {
	case 0:
		return n >> 2 % 300
	case 1:
		return 1<<31 - n>>2%3
	case 2:
		return 1 << (n >> 2 % 32)
	default:
		return n
	}
}

func (m *mutator) resize(wire []byte) {
	switch m.rng.IntN(3) {
	case 0:
		binary.BigEndian.PutUint32(wire[4:], m.size())
	case 1:
		wire[8] = byte(m.size())
	case 2:
		wire[9] = byte(m.size())
	}
	wire[10] = 6 + 66 + 11 + 1 + wire[7] + wire[8] + wire[9]
	wire[11] = 2 * wire[10]
}
