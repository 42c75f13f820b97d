package scheduler

// A strategy chooses the next batch for one replica. Strategies are pure: they see the rows that wait, the
// replica's profile and the time, and keep nothing but what they learn from finished batches.
type strategy interface {
	// pick chooses a window of q, which is not empty, for a batch under plan p. False: none of its rows
	// is worth sending to this replica now.
	pick(q *queue, p *plan) (window, bool)
	// learn is told of a finished batch: that it could have been limit rows large, was of rows, and took ns.
	learn(rows, limit int, ns int64)
	// limit is the most rows that the strategy would put into a batch now, for admission and for people.
	limit(p *plan) int
}

// A plan is what bounds the next batch of a replica.
type plan struct {
	start     int64 // when the replica could begin with it
	max       int   // most rows: of the model, the container, and batch_bytes
	maxWhy    CloseReason
	objective int64
	shed      bool // leave out rows that are predicted to be late
	prof      *profile
}

// A window is a run of waiting rows in deadline order.
type window struct {
	at   cursor
	rows int         // at most so many; requests are not split unless they are larger than a batch
	room int         // how many rows a batch beginning there could have
	cap  int         // how many rows any batch could have: larger requests are split
	why  CloseReason // what bounds room
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

// explored bounds a batch by the maximum, and by double the largest size measured: what a larger one would
// take is a guess.
func (p *plan) explored() (int, CloseReason) {
	if e := p.prof.explored(); e < p.max {
		return e, CloseLimit
	}
	return p.max, p.maxWhy
}

// bounded is explored, and also bounded by the objective. A batch of one is always allowed.
func (p *plan) bounded() (int, CloseReason) {
	limit, why := p.explored()
	if p.prof.planned(limit) <= p.objective {
		return limit, why
	}
	lo, hi := 1, limit // planned(hi) is beyond the objective
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; p.prof.planned(mid) <= p.objective {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo, CloseObjective
}

// firstFit is the window of at most limit rows that begins at the head of the queue, or, when shedding, at
// the first row that such a batch is predicted to answer in time. If no row can afford a batch that large,
// smaller ones are tried by halves.
func firstFit(q *queue, p *plan, limit int, why CloseReason) (window, bool) {
	if !p.shed {
		return window{at: q.start(), rows: min(limit, q.rows), room: limit, cap: limit, why: why}, true
	}
	for n := min(limit, q.rows); n >= 1; n /= 2 {
		at := q.seek(q.start(), p.start+p.prof.planned(n))
		if q.end(at) || min(q.item(at).rows(), limit) > n {
			continue
		}
		return window{at: at, rows: min(n, q.rowsFrom(at)), room: limit, cap: limit, why: why}, true
	}
	return window{}, false
}

// static sends what is there, up to a fixed maximum: Clipper's static batch size ("Batching",
// specs/clipper-design), for models with a compiled batch size. Neither the objective nor exploration
// bounds it.
type static struct{}

func (static) pick(q *queue, p *plan) (window, bool) { return firstFit(q, p, p.max, p.maxWhy) }
func (static) learn(int, int, int64)                 {}
func (static) limit(p *plan) int                     { return p.max }
