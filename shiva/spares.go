package shiva

import "github.com/shivad/shivad/shiva/tensor"

// Spares keeps small messages, with their memory, for the decoders of one goroutine that also
// releases them, such as an event loop. It avoids the work of the pools, about a sixth of a
// server's cost for a small request. The memory that it keeps, a megabyte at most, counts as taken
// from the pool. The zero value is ready; only that goroutine may use it.
type Spares struct {
	free []*Message // each has one buffer, with no other reference to it
}

// maxSpares bounds how many messages are kept, with at most arenaBytes each.
const maxSpares = 512

// Recycle is [Message.Release], but keeps the message if it is small. m may be any message of the
// same pool.
func (s *Spares) Recycle(m *Message) {
	if tensor.Invariants || !m.received || len(s.free) == maxSpares || cap(m.Tensors) > maxKeptTensors ||
		len(m.bufs) != 1 || m.bufs[0].Shared() || len(m.bufs[0].Bytes()) > arenaBytes {
		m.Release()
		return
	}
	m.received = false
	m.Namespace, m.Metadata = "", nil
	clear(m.Tensors[:cap(m.Tensors)])
	m.Tensors, m.dims = m.Tensors[:0], m.dims[:0]
	s.free = append(s.free, m)
}

// take returns a spare, or nil.
func (s *Spares) take() *Message {
	if s == nil || len(s.free) == 0 {
		return nil
	}
	last := len(s.free) - 1
	m := s.free[last]
	s.free[last] = nil
	s.free = s.free[:last]
	m.received = true
	return m
}

// Release returns everything to the pool.
func (s *Spares) Release() {
	for m := s.take(); m != nil; m = s.take() {
		m.Release()
	}
}
