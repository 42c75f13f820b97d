package wire

import "github.com/shivad/shivad/shiva/tensor"

// Bytes are values of a message in memory that grows as they arrive. The zero Bytes are none, and
// nothing of them needs to be released.
type Bytes struct {
	buf *tensor.Buffer
	n   int // bytes that are filled
}

// Len is how many there are.
func (b *Bytes) Len() int { return b.n }

// Data is where they lie. It is good until more of them are read.
func (b *Bytes) Data() []byte {
	if b.buf == nil {
		return []byte{}
	}
	return b.buf.Bytes()[:b.n]
}

// Truncate leaves the first n.
func (b *Bytes) Truncate(n int) { b.n = n }

// Take gives the buffer behind Data, nil if there is none, to the caller.
func (b *Bytes) Take() *tensor.Buffer {
	buf := b.buf
	*b = Bytes{}
	return buf
}

// Release gives the memory back.
func (b *Bytes) Release() { b.Take().Release() }

// Extend returns n bytes behind those that b has, all of which the caller fills; nil after an
// error.
func (m *Message) Extend(b *Bytes, n int) []byte { return m.extend(b, n, 0, 0) }

// extend is Extend where coming bytes more are in hand, and b will have whole in the end, as far as
// anybody knows; 0: nobody does.
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
// end, as far as anybody knows; 0: nobody does.
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
