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

// extend gives room for more bytes at the end, of which the caller fills all. The store will
// have whole bytes in the end, as far as anybody said; 0 if nobody did. arrived of them are at
// hand.
func (st *store) extend(from gate.Share, more, arrived, whole int) ([]byte, error) {
	have, need := 0, st.n+more
	if st.buf != nil {
		have = len(st.buf.Bytes())
	}
	if need > have {
		size := tensor.Stage(max(need, min(st.n+arrived, whole)), whole, from.StageFactor())
		b, err := from.Grow(st.buf, st.n, size)
		if err != nil {
			return nil, err
		}
		st.buf = b
	}
	room := st.buf.Bytes()[st.n:need]
	st.n = need
	return room, nil
}

// fill reads the next n bytes of s, all of which belong into the store; whole is as for extend.
func (st *store) fill(s *scanner, from gate.Share, n, whole int) {
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
