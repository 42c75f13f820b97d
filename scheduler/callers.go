package scheduler

import "math/bits"

// Sources that ask again on each answer: the reference's clients, robots, any loop of send and
// receive.
//
// Answering causes arrivals. A batch that leaves right after an answer leaves without the rows of
// the clients that were just answered, so synchronous clients split into two groups, each of which
// waits while the other's batch executes: half the rate at twice the latency. So the core learns
// which sources ask again on an answer, and how soon, and an idle replica waits for them where that
// pays for everybody (see gather).
//
// What is learned of a source are two shares: of its answers, those that a request followed within
// the horizon (hit), and of its requests, those that no answer preceded (extra). A camera and every
// other open loop fails one of them. The first request after a pause counts as neither.

const (
	callerSeen  = 3    // judged answers from which on a source may be a caller
	callerHit   = 0.4  // least share of answers that a request follows
	callerExtra = 0.06 // largest share of requests without an answer before them
	callerFade  = 16   // judged answers and requests over which the shares are means
	mostOwed    = 64   // answers of one source that wait for its next request
	othersFade  = 8    // requests of no caller over which the time between them is a mean
)

// habit is what is known of how a source asks. It is part of the source.
type habit struct {
	unanswered int // requests
	out        int // ... and their rows

	// Answers that no request has followed yet. They count from the oldest of them.

	owed     int // answers
	owedRows int
	since    int64
	older    *source // with such answers, by since
	newer    *source

	hits, extras habitShare
	caller       bool
	steady       bool // it asks after each answer: one more tells nothing new
}

// A habitShare is the share of true observations among the latest ones.
type habitShare struct {
	seen  int32
	value float32
}

// observe adds an observation.
func (s *habitShare) observe(is bool) {
	x := float32(0)
	if is {
		x = 1
	}
	s.seen = min(s.seen+1, callerFade)
	s.value += (x - s.value) / float32(s.seen)
}

const settled = 1.0 / 1024 // a share that is so near 0 or 1 counts as that, which saves time

// callers are the sources of a model that ask on answer.
type callers struct {
	now     int64 // of the current event
	horizon int64 // of an answer; 0: nothing is known
	longest int64 // wait for them: the time of one row

	oldest, newest *source // with answers that no request has followed

	asking uint64 // rows of all accepted requests so far
	due    int    // rows of callers' answers that no request has followed
	queued int    // rows of callers in the queue
	out    int    // ... and with those that execute
	away   int    // rows of callers that were answered, and whose clients wait for other parts

	others  int64 // when the latest request came that is of no caller
	between int64 // mean time between two such

	untold  []*source // whose clients wait for other parts, in no order
	awaited int       // ... and for which a gathering waits

	delays delays
	rests  delays // from the answer to a part to the client's
}

// inPlay is how many rows callers have: waiting, executing or due.
func (cs *callers) inPlay() int { return cs.out + cs.due }

// everywhere is how many rows callers have, with those whose clients wait for other parts.
func (cs *callers) everywhere() int { return cs.inPlay() + cs.away }

// begin is called at every event, before anything else, and for observers, who may come long after
// the last event.
func (cs *callers) begin(now int64) {
	cs.now = now
	if cs.oldest != nil && cs.oldest.since < now-cs.horizon {
		cs.expire()
	}
}

// asked counts an accepted request.
func (cs *callers) asked(s *source, rows int) {
	s.unanswered++
	s.out += rows
	cs.asking += uint64(rows)
	if s.caller {
		cs.out += rows
	} else {
		cs.between += (cs.now - cs.others - cs.between) / othersFade
		cs.others = cs.now
	}
	if cs.horizon == 0 || s.id == 0 {
		return
	}
	switch {
	case s.owed > 0:
		if s.caller {
			cs.delays.add(cs.now - s.since)
		}
		if !s.steady {
			s.hits.observe(true)
			s.extras.observe(false)
			cs.judge(s)
		}
		cs.dropOwed(s, 1)
	case s.unanswered > 1:
		s.extras.observe(true)
		cs.judge(s)
	}
}

// sinceOthers is the mean time between two requests of no caller, or the time since the latest one
// if that is longer.
func (cs *callers) sinceOthers() int64 { return max(cs.between, cs.now-cs.others) }

// left counts the end of an accepted request. It is all that counts of a superseded frame: the next
// frame caused its end, and does not follow it. Otherwise a camera that is faster than the model
// would look like a client that waits for answers.
func (cs *callers) left(s *source, rows int) {
	s.unanswered--
	s.out -= rows
	if s.caller {
		cs.out -= rows
	}
}

// answered counts the answer to an accepted request, or its error: clients ask again after either.
func (cs *callers) answered(s *source, rows int) {
	cs.left(s, rows)
	cs.owe(s, rows)
}

// owe counts an answer that a client has.
func (cs *callers) owe(s *source, rows int) {
	if cs.horizon == 0 || s.id == 0 || s.owed >= mostOwed {
		return
	}
	if s.owed == 0 {
		s.since, s.older = cs.now, cs.newest
		if cs.newest == nil {
			cs.oldest = s
		} else {
			cs.newest.newer = s
		}
		cs.newest = s
	}
	s.owed++
	s.owedRows += rows
	if s.caller {
		cs.due += rows
	}
}

// expire counts answers that no request has followed within the horizon.
func (cs *callers) expire() {
	for s := cs.oldest; s != nil && s.since < cs.now-cs.horizon; s = cs.oldest {
		for range s.owed {
			if s.caller {
				cs.delays.miss()
			}
			s.hits.observe(false)
		}
		cs.dropOwed(s, s.owed)
		cs.judge(s)
	}
}

// dropOwed removes the oldest n answers of s that no request had followed.
func (cs *callers) dropOwed(s *source, n int) {
	rows := n
	if s.owedRows != s.owed { // a division takes as long as all the rest
		rows = s.owedRows * n / s.owed
	}
	s.owed -= n
	s.owedRows -= rows
	if s.caller {
		cs.due -= rows
	}
	if s.owed > 0 {
		return
	}
	if s.older == nil {
		cs.oldest = s.newer
	} else {
		s.older.newer = s.newer
	}
	if s.newer == nil {
		cs.newest = s.older
	} else {
		s.newer.older = s.older
	}
	s.older, s.newer = nil, nil
}

// judge decides whether a source is a caller.
func (cs *callers) judge(s *source) {
	s.steady = s.hits.seen == callerFade && s.hits.value > 1-settled && s.extras.value < settled
	is := s.hits.seen >= callerSeen && s.hits.value > callerHit && s.extras.value < callerExtra
	if is == s.caller {
		return
	}
	s.caller = is
	sign := 1
	if !is {
		sign = -1
	}
	cs.due += sign * s.owedRows
	cs.queued += sign * s.rows
	cs.out += sign * s.out
	cs.away += sign * s.untold
}

// forget removes what a source that is forgotten is owed.
func (cs *callers) forget(s *source) {
	if s.owed > 0 {
		cs.dropOwed(s, s.owed)
	}
	if s.untold > 0 {
		cs.dropUntold(s, s.untold)
	}
}

// delays is a histogram of the times from an answer to the request that follows it, of all callers.
// Its older half fades as new times come.
type delays struct {
	counts [delayClasses]float32
	total  float32 // with answers that nothing followed
}

const (
	delaySteps   = 4                              // classes to the doubling
	leastDelay   = 15                             // log2 ns: 33 µs
	delayClasses = delaySteps * (33 - leastDelay) // up to 8.6 s
	delayFades   = 256
)

// delayClass is the class of a time: the smallest whose edge is not below it.
func delayClass(ns int64) int {
	if ns <= 1<<leastDelay {
		return 0
	}
	ns--
	e := 63 - bits.LeadingZeros64(uint64(ns))
	return min((e-leastDelay)*delaySteps+int(ns>>(e-2)&3)+1, delayClasses-1)
}

// delayEdge is the upper edge of a class.
func delayEdge(class int) int64 {
	if class == 0 {
		return 1 << leastDelay
	}
	class--
	e := class/delaySteps + leastDelay
	return int64(4+class%delaySteps+1) << (e - 2)
}

func (d *delays) add(ns int64) {
	d.counts[delayClass(ns)]++
	d.count()
}

func (d *delays) miss() { d.count() }

// median is the time within which a request follows half of the answers that one follows, in ns.
func (d *delays) median() int64 { return d.within(0.5) }

// within is the time within which a request follows a share of the answers that one follows.
func (d *delays) within(share float32) int64 {
	all, sum := float32(0), float32(0)
	for _, n := range d.counts {
		all += n
	}
	for class, n := range d.counts {
		if sum += n; sum >= share*all && all > 0 {
			return delayEdge(class)
		}
	}
	return 0
}

func (d *delays) count() {
	if d.total++; d.total < delayFades {
		return
	}
	for i := range d.counts {
		d.counts[i] /= 2
	}
	d.total /= 2
}
