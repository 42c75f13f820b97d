package scheduler

// aimd is the strategy of Clipper's paper (Crankshaw et al., "Clipper: A Low-Latency Online
// Prediction Serving System", NSDI 2017, section 4.3.1): the maximum batch size grows by one
// while batches stay under the latency objective, and shrinks by a tenth when one does not. "We
// use a smaller back-off constant than other AIMD schemes since the optimal batch size does not
// fluctuate much."
//
// Batches smaller than the maximum are no evidence that a larger one fits, and do not raise it.
// The bound on exploration holds as for all strategies.
type aimd struct {
	size      float64
	objective int64
}

const aimdBackoff = 0.9

func (s *aimd) pick(q *queue, p *plan) (window, bool) {
	limit, why := s.bound(p)
	return firstFit(q, p, limit, why)
}

func (s *aimd) bound(p *plan) (int, CloseReason) {
	s.objective, _ = p.allowed()
	limit, why := p.explored()
	if n := max(1, int(s.size)); n < limit {
		return n, CloseLimit
	}
	return limit, why
}

func (s *aimd) learn(rows, limit int, ns int64) {
	switch {
	case ns > s.objective && s.objective > 0:
		s.size = max(1, s.size*aimdBackoff)
	case rows >= limit && rows >= int(s.size):
		s.size = float64(rows) + 1
	}
}

func (s *aimd) limit(p *plan) int {
	n, _ := s.bound(p)
	return n
}
