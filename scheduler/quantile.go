package scheduler

import "math"

// regression is the strategy "quantile": the idea that Clipper shipped (its model container
// estimates the batch size from the time left: src/libclipper/include/clipper/containers.hpp,
// get_batch_size). The paper's section 4.3.1 describes quantile regression of latency on size;
// Clipper shipped the regression of size on latency, as here: least squares with forgetting,
// evaluated at the time left to the head of the queue, less the residuals' upper quantile.
//
// It exists for comparison. Since it follows the time left to the head, it collapses under
// overload.
type regression struct {
	// Weighted sums over finished batches, with x the execution time and y the rows.
	w, x, y, xx, xy, yy float64
}

const (
	regressionForget = 0.98 // weight of a batch per batch after it
	regressionMin    = 4    // batches before the line is believed
	// In standard deviations of the residuals: the 96th percentile of a normal distribution.
	regressionZ = 1.75
)

func (s *regression) pick(q *queue, p *plan) (window, bool) {
	limit, why := p.explored()
	at := q.start()
	if p.shed {
		at = q.seek(at, p.start+p.planned(1))
		if q.end(at) {
			return window{}, false
		}
	}
	allowed, _ := p.allowed()
	left := min(q.item(at).deadline-p.start, allowed)
	if n := s.size(float64(left)); n < limit {
		limit, why = n, CloseDeadline
		if left == allowed {
			why = CloseObjective
		}
	}
	return firstFit(q, p, limit, why)
}

// size is the number of rows for a batch that takes ns; without measurements, as many as
// exploration allows.
func (s *regression) size(ns float64) int {
	varX := s.xx - s.x*s.x/max(s.w, 1)
	if s.w < regressionMin || varX <= 0 {
		return math.MaxInt
	}
	cov := s.xy - s.x*s.y/s.w
	slope := cov / varX
	residual := math.Sqrt(max(0, s.yy-s.y*s.y/s.w-slope*cov) / s.w)
	n := s.y/s.w + slope*(ns-s.x/s.w) - regressionZ*residual
	return int(min(max(n, 1), 1<<30))
}

func (s *regression) learn(rows, _ int, ns int64) {
	for _, sum := range []*float64{&s.w, &s.x, &s.y, &s.xx, &s.xy, &s.yy} {
		*sum *= regressionForget
	}
	x, y := float64(ns), float64(rows)
	s.w, s.x, s.y = s.w+1, s.x+x, s.y+y
	s.xx, s.xy, s.yy = s.xx+x*x, s.xy+x*y, s.yy+y*y
}

func (s *regression) limit(p *plan) int {
	limit, _ := p.explored()
	allowed, _ := p.allowed()
	return min(limit, s.size(float64(allowed)))
}
