package scheduler

// counters count from the creation of the model.
type counters struct {
	submitted, batches, rows, batchesDone, batchesFailed, retried, suspected, frames, shown, reordered uint64

	waits, waitedRows, waitsInVain uint64 // see Counts

	// Of all requests, including refused ones.

	arrived  uint64 // rows, and those of Missed
	wanted   uint64 // rows that count as load; see Need
	promised uint64 // of these, rows of streams that keep only their newest frames
	missed   uint64 // of these, rows that did not come and lift the bound of Need; see Miss
	squares  uint64 // sum of the squares of each request's wanted rows
	bound    uint64 // requests that arrived with a deadline ahead
	timeLeft uint64 // sum of the times that they had left on arrival, in µs

	peak     int
	outcomes [outcomes]uint64
	closed   [closeReasons]uint64
}

// since returns the difference to an earlier state, without the peak.
func (c *counters) since(old *counters) Counts {
	n := Counts{
		Submitted: c.submitted - old.submitted, Peak: c.peak,
		Outcomes: make(map[Outcome]uint64), Closed: make(map[CloseReason]uint64),
		Batches: c.batches - old.batches, Rows: c.rows - old.rows,
		BatchesDone: c.batchesDone - old.batchesDone, BatchesFailed: c.batchesFailed - old.batchesFailed,
		Arrived: c.arrived - old.arrived,
		Retried: c.retried - old.retried, Suspected: c.suspected - old.suspected,
		Frames: c.frames - old.frames, FramesAnswered: c.shown - old.shown, Reordered: c.reordered - old.reordered,
	}
	n.Waits, n.WaitedRows, n.WaitsInVain = c.waits-old.waits, c.waitedRows-old.waitedRows, c.waitsInVain-old.waitsInVain
	for o := range c.outcomes {
		if c.outcomes[o] > old.outcomes[o] { // spoiled turns an outcome from ok into a failure
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

// past stores the counters at several moments of the last minute, so that recent counts can be
// separated from those since the start. The first event after a pause stores a mark before it
// counts: an event costs one comparison, and an idle model nothing.
type past struct {
	next  int64 // when the next mark is due
	noted int   // marks stored so far; the latest is noted-1, modulo pastMarks
	marks [pastMarks]mark
}

// A mark is the state of the counters at one moment.
type mark struct {
	at int64
	counters
	most int // peak of unanswered requests until the next mark
}

const (
	pastSpan  = 60_000_000_000 // ns
	pastPause = pastSpan / 6   // between marks
	pastMarks = 8              // enough for the span and the mark before it
)

// sample is called at every event, before anything is counted.
func (p *past) sample(now int64, c *counters, requests int) {
	if now < p.next {
		return
	}
	p.next = now + pastPause
	p.noted++
	*p.mark(0) = mark{at: now, counters: *c, most: requests}
}

// ended returns how long ago the recent past ended: 0 or, if nothing has happened for a minute, the
// time since the first moment at which an event would have stored another mark.
func (p *past) ended(now int64) int64 {
	if ago := now - p.next; p.noted > 0 && ago > pastSpan {
		return ago
	}
	return 0
}

// mark returns the mark that is the given number of marks before the latest one.
func (p *past) mark(but int) *mark { return &p.marks[(p.noted-1-but+pastMarks)%pastMarks] }

// raise updates the peak with the current number of unanswered requests.
func (p *past) raise(requests int) {
	if m := p.mark(0); requests > m.most {
		m.most = requests
	}
}

// recent returns the mark at which the recent past begins, and the peak of unanswered requests
// since. It is the earliest mark of the last minute or, if nothing was counted in that minute, the
// last mark before the latest event that was counted.
func (p *past) recent(now int64, c *counters) (from *mark, peak int) {
	but := 0
	for ; but+1 < min(p.noted, pastMarks); but++ {
		if m := p.mark(but + 1); m.at < now-pastSpan && p.mark(but).counters != *c {
			break
		}
		peak = max(peak, p.mark(but).most)
	}
	from = p.mark(but)
	return from, max(peak, from.most)
}
