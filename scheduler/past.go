package scheduler

// counters count since the model was made.
type counters struct {
	submitted, batches, rows, batchesDone, batchesFailed, retried, suspected uint64

	peak     int
	outcomes [outcomes]uint64
	closed   [closeReasons]uint64
}

// since is what was counted since an earlier state; the peak is not a matter of that.
func (c *counters) since(old *counters) Counts {
	n := Counts{
		Submitted: c.submitted - old.submitted, Peak: c.peak,
		Outcomes: make(map[Outcome]uint64), Closed: make(map[CloseReason]uint64),
		Batches: c.batches - old.batches, Rows: c.rows - old.rows,
		BatchesDone: c.batchesDone - old.batchesDone, BatchesFailed: c.batchesFailed - old.batchesFailed,
		Retried: c.retried - old.retried, Suspected: c.suspected - old.suspected,
	}
	for o := range c.outcomes {
		if c.outcomes[o] > old.outcomes[o] { // a request can turn from ok into spoiled
			n.Outcomes[Outcome(o)] = c.outcomes[o] - old.outcomes[o]
		}
	}
	for r := range c.closed {
		if d := c.closed[r] - old.closed[r]; d > 0 {
			n.Closed[CloseReason(r)] = d
		}
	}
	return n
}

// past remembers the counters as they were at some moments of the last minute, so that the
// recent past can be told from what is long gone. A moment is noted by the first event after a
// pause, before it counts: an event pays one comparison, and a model at rest nothing.
type past struct {
	next  int64 // when the next moment is due
	noted int   // so many were; the last one is noted-1, modulo pastMarks
	marks [pastMarks]mark
}

// A mark is a moment.
type mark struct {
	at int64
	counters
	most int // requests unanswered at a time, from then until the next mark
}

const (
	pastSpan  = 60_000_000_000 // ns
	pastPause = pastSpan / 6   // between marks
	pastMarks = 8              // enough for the span, with the one before it
)

// note is called at every event, before anything is counted.
func (p *past) note(now int64, c *counters, requests int) {
	if now < p.next {
		return
	}
	p.next = now + pastPause
	p.noted++
	*p.last(0) = mark{at: now, counters: *c, most: requests}
}

// last returns the mark that is the given number of marks before the last one.
func (p *past) last(but int) *mark { return &p.marks[(p.noted-1-but+pastMarks)%pastMarks] }

// raise takes in that there are so many unanswered requests.
func (p *past) raise(requests int) {
	if m := p.last(0); requests > m.most {
		m.most = requests
	}
}

// recent is the moment from which on the recent past counts, and the most unanswered requests
// since. It is the earliest of the last minute, or, if nothing was counted in that, the last
// one before something was.
func (p *past) recent(now int64, c *counters) (from *mark, peak int) {
	but := 0
	for ; but+1 < min(p.noted, pastMarks); but++ {
		if m := p.last(but + 1); m.at < now-pastSpan && p.last(but).counters != *c {
			break
		}
		peak = max(peak, p.last(but).most)
	}
	from = p.last(but)
	return from, max(peak, from.most)
}
