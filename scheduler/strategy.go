package scheduler

import "math"

// A strategy chooses the next batch for one replica. Strategies are pure: they depend on the
// waiting rows, the replica's profile and the time, and their only state is what they learn from
// finished batches.
type strategy interface {
	// pick chooses a window of q, which is not empty, for a batch under plan p. It returns false
	// if none of the rows is worth sending to this replica now.
	pick(q *queue, p *plan) (window, bool)
	// learn is called for a finished batch that could have had limit rows, had rows, and took ns.
	learn(rows, limit int, ns int64)
	// limit is the largest batch that the strategy would make now, for admission and statistics.
	limit(p *plan) int
}

// A plan has the bounds of the next batch of a replica.
type plan struct {
	share           // sizes are of this server's rows, times of the whole execution
	target    int   // rows of the execution that all servers expect; 0: unknown
	best      int   // rows of the execution that is best for this server, set by pick
	granted   bool  // the replica is shared, and its grant must be used or given back
	start     int64 // when the replica could begin the batch
	max       int   // most rows, by the model, the container and batch_bytes
	maxWhy    CloseReason
	ceiling   int // of the replica, if a larger batch may be tried now; else 0
	objective int64
	shed      bool    // skip rows that are predicted to be late
	trials    *trials // of the replica; nil: no trials
	prof      *profile
}

// A window is a run of waiting rows in deadline order.
type window struct {
	at   cursor
	rows int         // at most; a request is not split unless it is larger than a batch
	room int         // the most rows of a batch that begins there
	cap  int         // the most rows of any batch: larger requests are split
	why  CloseReason // the bound that determines room
	left CloseReason // why waiting rows that have room are not in it
	// Of a trial: the time that as many rows take in batches of the best known size, in ns; else 0.
	bestTime       float64
	medianDeadline int64 // of a trial: the median deadline of its rows
	divides        bool  // of a trial: it leaves out callers that could have been in the batch
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

// explored bounds a batch by the maximum, and by double the largest measured size: the time of a
// larger batch is a guess.
func (p *plan) explored() (int, CloseReason) {
	if e := p.own(p.prof.explored()); e < p.max {
		return e, CloseLimit
	}
	return p.max, p.maxWhy
}

// The objective bounds what batching adds, not the cost of a single row.
const (
	aloneShare  = 0.5 // of the objective: where one row takes more, the bound is aloneFactor ...
	aloneFactor = 1.5 // ... times one row
	growth      = 2.0 / 3
)

// allowed is how long a batch may take: the objective or, if one row takes more than aloneShare of
// that, aloneFactor times one row where that is longer. alone reports that one row takes more than
// aloneShare of the objective.
func (p *plan) allowed() (ns int64, alone bool) {
	one := p.unstalled(1)
	if float64(one) <= aloneShare*float64(p.objective) {
		return p.objective, false
	}
	return max(p.objective, int64(aloneFactor*float64(one))), true
}

// bounded bounds a batch by exploration and by the objective. A batch of one is always allowed.
// Where one row takes more than half of the objective, larger sizes are allowed, too, if their rate
// makes up for their length: it must grow at least with the cube root of the rows, by a quarter for
// each doubling.
func (p *plan) bounded() (int, CloseReason) {
	limit, why := p.explored()
	allowed, alone := p.allowed()
	if p.unstalled(limit) <= allowed {
		return limit, why
	}
	lo, hi := 1, limit // unstalled(hi) exceeds what is allowed
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; p.unstalled(mid) <= allowed {
			lo = mid
		} else {
			hi = mid
		}
	}
	for n := lo; alone && n < limit; {
		n = min(2*n, limit)
		if p.typical(n) > p.typical(lo)*math.Pow(float64(n)/float64(lo), growth) {
			break
		}
		if lo = n; n == limit {
			return limit, why
		}
	}
	return lo, CloseObjective
}

// firstFit is the window of at most limit rows that begins at the head of the queue or, when
// shedding, at the first row that such a batch is predicted to answer in time. If there is no
// such row, half the size is tried, and so on.
func firstFit(q *queue, p *plan, limit int, why CloseReason) (window, bool) {
	if !p.shed {
		return window{at: q.start(), rows: min(limit, q.rows), room: limit, cap: limit, why: why}, true
	}
	for n := min(limit, q.rows); n >= 1; n /= 2 {
		at := q.seek(q.start(), p.start+p.planned(n))
		if q.end(at) || min(q.item(at).rows(), limit) > n {
			continue
		}
		return window{at: at, rows: min(n, q.rowsFrom(at)), room: limit, cap: limit, why: why,
			left: CloseDeadline}, true
	}
	return window{}, false
}

// static sends the waiting rows up to a fixed maximum: Clipper's static batch size (its design
// document, "Batching"), for models with a compiled batch size. Neither the objective nor
// exploration bounds it.
type static struct{}

func (static) pick(q *queue, p *plan) (window, bool) { return firstFit(q, p, p.max, p.maxWhy) }
func (static) learn(int, int, int64)                 {}
func (static) limit(p *plan) int                     { return p.max }
