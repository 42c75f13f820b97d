package tcp

import (
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// outbound is a run of encoded answers that the transport has not yet taken. During a write its
// memory is the loop's. If the transport had too little room, outbound takes the memory over: small
// parts stay in the buffer that they were encoded into, and large tensors in their calls.
type outbound struct {
	first, last *call // nil: nothing is unsent
	vecs        []shiva.Vec
	cut         int  // bytes of the first vec's first unit that have been written
	bytes       int  // in vecs, without cut
	own         bool // vecs and the buffers behind them no longer belong to the loop
}

// next returns the bytes to write next, in wire order: in place if they need no swap, otherwise as
// many as fit into the loop's block.
func (u *outbound) next(l *loop) [][]byte {
	l.iovecs = l.iovecs[:0]
	var free []byte
	for _, v := range u.vecs {
		if v.Width == 1 {
			l.iovecs = append(l.iovecs, v.Data)
			continue
		}
		if free == nil {
			free = l.swapBlock()
		}
		n := min(len(v.Data), len(free)&^(v.Width-1))
		if n > 0 {
			tensor.SwapCopy(free, v.Data[:n], v.Width)
			l.iovecs = append(l.iovecs, free[:n])
			free = free[n:]
		}
		if n < len(v.Data) {
			break
		}
	}
	l.iovecs[0] = l.iovecs[0][u.cut:]
	return l.iovecs
}

// wrote removes the first n bytes.
func (u *outbound) wrote(n int) {
	u.bytes -= n
	n += u.cut
	for u.cut = 0; n > 0 && n >= len(u.vecs[0].Data); u.vecs = u.vecs[1:] {
		n -= len(u.vecs[0].Data)
	}
	if n > 0 {
		v := &u.vecs[0]
		u.cut = n % v.Width
		v.Data = v.Data[n-u.cut:]
	}
}

// keep takes over the loop's buffers.
func (u *outbound) keep(l *loop) {
	if !u.own {
		l.out, l.vecs, u.own = nil, nil, true
	}
}

// unpin copies the answers to a client that does not read out of their batches: a row of a few
// bytes would hold the memory of its whole batch. Of encoded answers only the parts that vecs
// refers to are needed; the rest has been copied or written. Answers from a cache may refer to the
// same memory: one copy serves all of them, as they are released together.
func (s *session) unpin() {
	pool, vecs := s.loop.door.pool, s.outbound.vecs
	last := func(data []byte) *byte { return &data[len(data)-1] }
	ends := make(map[*byte][]int, len(vecs)) // the vecs by their last byte; the first may be cut
	for i, v := range vecs {
		ends[last(v.Data)] = append(ends[last(v.Data)], i)
	}
	referred := func(data []byte) (longest []byte) {
		if len(data) > 0 {
			for _, i := range ends[last(data)] {
				if len(vecs[i].Data) > len(longest) {
					longest = vecs[i].Data
				}
			}
		}
		return longest
	}
	moved := func(from, to []byte) {
		for _, i := range ends[last(from)] {
			vecs[i].Data = to[len(to)-len(vecs[i].Data):]
		}
		delete(ends, last(from))
	}
	for c := s.outbound.first; c != nil; c = c.next {
		c.gate.Unpin(pool, referred, moved)
	}
	all := func(data []byte) []byte { return data }
	for c := s.head; c != nil; c = c.next {
		if c.phase == answered {
			c.gate.Unpin(pool, all, func(_, _ []byte) {})
		}
	}
}

// release frees the calls, and returns the loop's buffers unless it owns them.
func (u *outbound) release(s *session) {
	const keep = 8 << 20 // a larger buffer was for one large answer
	l := s.loop
	for c := u.first; c != nil; {
		next := c.next
		s.waiting--
		s.outbox.Take(c.outboxBytes)
		l.freeCall(c)
		c = next
	}
	if !u.own {
		clear(l.vecs)
		l.out, l.vecs = l.out[:0], l.vecs[:0]
		if cap(l.out) > keep {
			l.out = nil
		}
	}
	if cap(l.metadata) > keep {
		l.metadata = nil
	}
	*u = outbound{}
	s.submitHeld()
}
