package scheduler

import "math"

// A strategy chooses the next batch for one replica. Strategies are pure: they see the rows
// that wait, the replica's profile and the time, and keep nothing but what they learn from
// finished batches.
type strategy interface {
	// pick chooses a window of q, which is not empty, for a batch under plan p. False: none of
	// its rows is worth sending to this replica now.
	pick(q *queue, p *plan) (window, bool)
	// learn is told of a finished batch: that it could have been limit rows large, was of rows,
	// and took ns.
	learn(rows, limit int, ns int64)
	// limit is the most rows that the strategy would put into a batch now, for admission and
	// for people.
	limit(p *plan) int
}

// A plan is what bounds the next batch of a replica.
type plan struct {
	start     int64 // when the replica could begin with it
	max       int   // most rows: of the model, the container, and batch_bytes
	maxWhy    CloseReason
	ceiling   int // of the replica, if a larger batch may be tried now; else 0
	objective int64
	shed      bool    // leave out rows that are predicted to be late
	trials    *trials // of the replica; nil: there are none
	prof      *profile
}

// A window is a run of waiting rows in deadline order.
type window struct {
	at   cursor
	rows int         // at most so many; requests are not split unless they are larger than a batch
	room int         // how many rows a batch beginning there could have
	cap  int         // how many rows any batch could have: larger requests are split
	why  CloseReason // what bounds room
	left CloseReason // why rows that wait and for which there is room are not in it
	par  float64     // of a trial: how long so many rows take in the batches that look best, in ns; else 0
	half int64       // of a trial: the deadline that half of its rows do not have before
}

func newStrategy(name string) strategy {
	switch name {
	case strategyAIMD:
		return &aimd{size: 1}
	case strategyQuantile:
		return &regression{}
	case strategyStatic:
		return static{}
	default:
		return deadline{}
	}
}

// explored bounds a batch by the maximum, and by double the largest size measured: what a
// larger one would take is a guess.
func (p *plan) explored() (int, CloseReason) {
	if e := p.prof.explored(); e < p.max {
		return e, CloseLimit
	}
	return p.max, p.maxWhy
}

// The objective bounds what batching adds, not what a single row costs anyway.
const (
	aloneShare  = 0.5 // of the objective: where one row takes more, the bound is another
	aloneFactor = 1.5 // ... times one row
	growth      = 2.0 / 3
)

// allowed is how long a batch may take: the objective, or half as long again as one row alone,
// where that is more. alone: one row takes more than half of the objective.
func (p *plan) allowed() (ns int64, alone bool) {
	one := p.prof.owed(1)
	if float64(one) <= aloneShare*float64(p.objective) {
		return p.objective, false
	}
	return max(p.objective, int64(aloneFactor*float64(one))), true
}

// bounded is explored, and also bounded by the objective. A batch of one is always allowed.
// Where one row takes more than half of the objective, larger sizes are allowed, too, that
// serve more rows per second by so much that it makes up for their length: by the cube root of
// the rows at least, a quarter more for the double.
func (p *plan) bounded() (int, CloseReason) {
	limit, why := p.explored()
	allowed, alone := p.allowed()
	if p.prof.owed(limit) <= allowed {
		return limit, why
	}
	lo, hi := 1, limit // owed(hi) is beyond what is allowed
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; p.prof.owed(mid) <= allowed {
			lo = mid
		} else {
			hi = mid
		}
	}
	for n := lo; alone && n < limit; {
		n = min(2*n, limit)
		if p.prof.typical(n) > p.prof.typical(lo)*math.Pow(float64(n)/float64(lo), growth) {
			break
		}
		if lo = n; n == limit {
			return limit, why
		}
	}
	return lo, CloseObjective
}

// firstFit is the window of at most limit rows that begins at the head of the queue, or, when
// shedding, at the first row that such a batch is predicted to answer in time. If no row can
// afford a batch that large, smaller ones are tried by halves.
func firstFit(q *queue, p *plan, limit int, why CloseReason) (window, bool) {
	if !p.shed {
		return window{at: q.start(), rows: min(limit, q.rows), room: limit, cap: limit, why: why}, true
	}
	for n := min(limit, q.rows); n >= 1; n /= 2 {
		at := q.seek(q.start(), p.start+p.prof.planned(n))
		if q.end(at) || min(q.item(at).rows(), limit) > n {
			continue
		}
		return window{at: at, rows: min(n, q.rowsFrom(at)), room: limit, cap: limit, why: why, left: CloseDeadline}, true
	}
	return window{}, false
}

// static sends what is there, up to a fixed maximum: Clipper's static batch size (its design
// document, "Batching"), for models with a compiled batch size. Neither the objective nor
// exploration bounds it.
type static struct{}

func (static) pick(q *queue, p *plan) (window, bool) { return firstFit(q, p, p.max, p.maxWhy) }
func (static) learn(int, int, int64)                 {}
func (static) limit(p *plan) int                     { return p.max }
