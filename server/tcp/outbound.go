package tcp

// outbound is a run of answers, encoded and not yet taken by the transport. Its memory is the
// loop's while a write is tried, and its own when that had too little room: then the small parts
// stay in the buffer that they were encoded into, and large tensors where they are, in their
// calls.
type outbound struct {
	first, last *call // nil: nothing is unsent
	vecs        [][]byte
	bytes       int  // in vecs
	own         bool // vecs and what they are cut from are no longer the loop's
}

// keep takes the first n bytes off, which were written, and the loop's buffers over.
func (u *outbound) keep(l *loop, n int) {
	for n >= len(u.vecs[0]) {
		n -= len(u.vecs[0])
		u.vecs = u.vecs[1:]
	}
	u.vecs[0] = u.vecs[0][n:]
	if !u.own {
		l.out, l.vecs, u.own = nil, nil, true
	}
}

// unpin copies the answers to a client that stands still out of their batches: a row of a few
// bytes would hold the memory of all of its batch. Of answers that are encoded, what vecs refers
// to is needed, and the rest is there as a copy or has been written.
func (s *session) unpin() {
	pool, vecs := s.loop.door.pool, s.outbound.vecs
	ends := make(map[*byte]*[]byte, len(vecs))
	for i, v := range vecs {
		ends[&v[len(v)-1]] = &vecs[i]
	}
	referred := func(data []byte) []byte {
		if len(data) > 0 {
			if v := ends[&data[len(data)-1]]; v != nil {
				return *v
			}
		}
		return nil
	}
	for c := s.outbound.first; c != nil; c = c.next {
		c.gate.Unpin(pool, referred, func(from, to []byte) { *ends[&from[len(from)-1]] = to })
	}
	all := func(data []byte) []byte { return data }
	for c := s.head; c != nil; c = c.next {
		if c.answered {
			c.gate.Unpin(pool, all, func(_, _ []byte) {})
		}
	}
}

// release frees the calls, and gives the loop's buffers back to it unless they are its own.
func (u *outbound) release(s *session) {
	const keep = 8 << 20 // a larger buffer was for one large answer
	l := s.loop
	for c := u.first; c != nil; {
		next := c.next
		s.waiting--
		s.outbox.Take(c.room)
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
