package wire

import "github.com/shivad/shivad/shiva/tensor"

// Bytes holds values of a message in memory that grows as they arrive. The zero Bytes is empty and
// needs no Release.
type Bytes struct {
	buf *tensor.Buffer
	n   int // bytes that are filled
}

// Len returns the number of bytes.
func (b *Bytes) Len() int { return b.n }

// Data returns the bytes. They are valid until more are read.
func (b *Bytes) Data() []byte {
	if b.buf == nil {
		return []byte{}
	}
	return b.buf.Bytes()[:b.n]
}

// Truncate keeps the first n bytes.
func (b *Bytes) Truncate(n int) { b.n = n }

// Take gives the caller the buffer behind Data, or nil if there is none.
func (b *Bytes) Take() *tensor.Buffer {
	buf := b.buf
	*b = Bytes{}
	return buf
}

// Release gives the memory back.
func (b *Bytes) Release() { b.Take().Release() }

// Extend appends n bytes to b and returns them. The caller must fill all of them. nil: an error.
func (m *Message) Extend(b *Bytes, n int) []byte { return m.extend(b, n, 0, 0) }

// extend is Extend for a value of which coming more bytes are in hand. b will have whole bytes in
// the end, as far as is known; 0: unknown.
func (m *Message) extend(b *Bytes, n, coming, whole int) []byte {
	if m.err != nil {
		return nil
	}
	need := b.n + n
	if b.buf == nil || need > len(b.buf.Bytes()) {
		size := tensor.Stage(max(need, min(need+coming, whole)), whole, m.share.StageFactor())
		larger, err := m.share.Grow(b.buf, b.n, size)
		if err != nil {
			m.Fail(err)
			return nil
		}
		b.buf = larger
	}
	room := b.buf.Bytes()[b.n:need]
	b.n = need
	return room
}

// Append reads the rest of the current value to the end of b, which will have whole bytes in the
// end, as far as is known; 0: unknown.
func (m *Message) Append(b *Bytes, whole int) {
	for n := m.field.end - m.pos; n > 0; {
		p := m.piece(n)
		n -= len(p)
		room := m.extend(b, len(p), min(m.arrived(), n), whole)
		if room == nil {
			return
		}
		copy(room, p)
	}
}
