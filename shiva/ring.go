package shiva

// A ring holds the calls of a link in the order of their messages: first those that were sent and
// wait for their answer, then those that wait to be sent. Its size is fixed; the link's slots keep
// it from overflowing.
type ring struct {
	calls []*call // len is a power of two
	head  int     // index of the oldest
	n     int     // calls in all
	sent  int     // how many of them were sent
}

func newRing(size int) ring {
	n := 1
	for n < size {
		n *= 2
	}
	return ring{calls: make([]*call, n)}
}

// at returns the place of the i-th oldest call.
func (r *ring) at(i int) **call { return &r.calls[(r.head+i)&(len(r.calls)-1)] }

func (r *ring) push(k *call) {
	*r.at(r.n) = k
	r.n++
}

// pop removes the oldest call, which must have been sent.
func (r *ring) pop() *call {
	p := r.at(0)
	k := *p
	*p = nil
	r.head++
	r.n--
	r.sent--
	return k
}

// nextUnsent returns the oldest call that was not sent, and counts it as sent; nil if there is
// none.
func (r *ring) nextUnsent() *call {
	if r.sent == r.n {
		return nil
	}
	k := *r.at(r.sent)
	r.sent++
	return k
}

// removeUnsent removes k from the calls that were not sent, and reports whether it was there.
func (r *ring) removeUnsent(k *call) bool {
	for i := r.sent; i < r.n; i++ {
		if *r.at(i) != k {
			continue
		}
		for ; i < r.n-1; i++ {
			*r.at(i) = *r.at(i + 1)
		}
		*r.at(i) = nil
		r.n--
		return true
	}
	return false
}
