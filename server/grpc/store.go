package grpc

import (
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/tensor"
)

// A store is memory of the pool for bytes that arrive one after the other. The zero store is
// empty, and nothing needs to be released of it.
type store struct {
	buf *tensor.Buffer
	n   int // bytes that are filled
}

func (st *store) bytes() []byte {
	if st.buf == nil {
		return []byte{}
	}
	return st.buf.Bytes()[:st.n]
}

func (st *store) release() {
	st.buf.Release()
	st.buf, st.n = nil, 0
}

// Memory for n bytes that are announced comes in stages, an eighth of each other, counted down
// from the whole: the next is the smallest that takes the bytes at hand and 16 KiB. So nobody
// gets more than eight times the memory that his bytes fill, and the copying from stage to
// stage adds up to a seventh. Bytes that are all at hand, or an eighth of them, get their
// memory at once.
const (
	stageFactor   = 8
	minStageBytes = 16 << 10
)

// memory is where stores get theirs.
type memory interface {
	// get gives a buffer of that many bytes. had more are given back when they are copied.
	get(size, had int) (*tensor.Buffer, error)
	// copy moves what a store has to the larger buffer that it got.
	copy(dst, src []byte)
	stageFactor() int
}

// plain is the memory of messages that arrived as they are.
type plain struct{ *gate.Memory }

func (p plain) stageFactor() int { return stageFactor }

func (p plain) copy(dst, src []byte) { copy(dst, src) }

func (p plain) get(size, _ int) (*tensor.Buffer, error) { return p.Get(size) }

// extend gives room for more bytes at the end, of which the caller fills all. The store will
// have whole bytes in the end, as far as anybody said; 0 if nobody did. arrived of them are at
// hand.
func (st *store) extend(from memory, more, arrived, whole int) ([]byte, error) {
	have, need := 0, st.n+more
	if st.buf != nil {
		have = len(st.buf.Bytes())
	}
	if need > have {
		size := max(2*have, need, 64)
		if whole > 0 {
			size = whole
			for least := max(min(st.n+arrived, whole), need, minStageBytes); size/from.stageFactor() >= least; {
				size /= from.stageFactor()
			}
		}
		b, err := from.get(size, have)
		if err != nil {
			return nil, err
		}
		from.copy(b.Bytes(), st.bytes())
		st.buf.Release()
		st.buf = b
	}
	room := st.buf.Bytes()[st.n:need]
	st.n = need
	return room, nil
}

// fill reads the next n bytes of s, all of which belong into the store; whole is as for extend.
func (st *store) fill(s *scanner, from memory, n, whole int) {
	for n > 0 {
		p := s.piece(n)
		if p == nil {
			return
		}
		n -= len(p)
		room, err := st.extend(from, len(p), len(p)+min(s.arrived(), n), whole)
		if err != nil {
			s.fail(err)
			return
		}
		copy(room, p)
	}
}
