package grpc

import (
	"fmt"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// A store is memory of the pool for bytes that arrive one after the other. The zero store is empty, and nothing needs to be
// released of it.
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

// Memory for n bytes that are announced comes in stages, an eighth of each other, counted down from the whole: the next is the smallest
// that takes the bytes at hand and 16 KiB. So nobody gets more than eight times the memory that his bytes fill, and
// the copying from stage to stage adds up to a seventh. Bytes that are all at hand, or an eighth of them, get their memory at once.
const (
	stageFactor   = 8
	minStageBytes = 16 << 10
)

// extend gives room for more bytes at the end, of which the caller fills all. The store will have whole bytes in the end, as far as
// anybody said; 0 if nobody did. arrived of them are at hand.
func (st *store) extend(pool *tensor.Pool, more, arrived, whole int) ([]byte, error) {
	have, need := 0, st.n+more
	if st.buf != nil {
		have = len(st.buf.Bytes())
	}
	if need > have {
		size := max(2*have, need, 64)
		if whole > 0 {
			size = whole
			for least := max(min(st.n+arrived, whole), need, minStageBytes); size/stageFactor >= least; {
				size /= stageFactor
			}
		}
		b, err := pool.Get(size)
		if err != nil {
			return nil, fmt.Errorf("%w: no memory for %d bytes of a request: %w (limits.payload_bytes)", scheduler.ErrOverloaded, size, err)
		}
		copy(b.Bytes(), st.bytes())
		st.buf.Release()
		st.buf = b
	}
	room := st.buf.Bytes()[st.n:need]
	st.n = need
	return room, nil
}

// fill reads the next n bytes of s, all of which belong into the store; whole is as for extend.
func (st *store) fill(s *scanner, pool *tensor.Pool, n, whole int) {
	for n > 0 {
		p := s.piece(n)
		if p == nil {
			return
		}
		n -= len(p)
		room, err := st.extend(pool, len(p), len(p)+min(s.arrived(), n), whole)
		if err != nil {
			s.fail(err)
			return
		}
		copy(room, p)
	}
}
