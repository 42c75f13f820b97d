package scheduler

import "sync/atomic"

// Parts is what the requests have in common that one request of a client becomes, to several
// models. The client asks again when the last of them is answered, so each model learns from the
// others' answers when its rows come again, and while others execute, by when they will (see
// gather). The zero Parts is ready for use.
//
// Each of the requests has it in its field Parts. Once all are answered, and before the client is,
// the submitter calls [Scheduler.Told] for each. It may use the Parts again after that.
//
// While the requests are not all known, as those to the later models of a pipeline, one more is
// counted: Add(1) first, and Add(-1) once they are.
type Parts struct {
	open   atomic.Int32 // not answered
	unsent atomic.Int32
	end    atomic.Int64 // by when those that were sent are answered, as planned
}

// Add counts n more requests. It is called before any of them is submitted.
func (p *Parts) Add(n int) {
	p.open.Add(int32(n))
	p.unsent.Add(int32(n))
}

// Reset makes a Parts ready for the requests of another client.
func (p *Parts) Reset() {
	p.open.Store(0)
	p.unsent.Store(0)
	p.end.Store(0)
}

// sent counts a request whose batch is planned to be answered by end.
func (p *Parts) sent(end int64) {
	for was := p.end.Load(); end > was && !p.end.CompareAndSwap(was, end); was = p.end.Load() {
	}
	p.unsent.Add(-1)
}

// answered counts an answer, and reports whether the client has its own with it.
func (p *Parts) answered() bool { return p == nil || p.open.Add(-1) == 0 }

// by is by when the last answer is planned; never: nothing is planned for one of them, or it is
// late.
func (p *Parts) by(now int64) int64 {
	if at := p.end.Load(); at >= now && p.unsent.Load() == 0 {
		return at
	}
	return never
}

// Told says that the client of an answered request, which has Parts, is about to have its answer.
// It does nothing if the scheduler knows it already, since this request was the last one.
func (s *Scheduler) Told(r *Request) {
	if r.state != stateUntold {
		return
	}
	m := r.Model
	m.mu.Lock()
	r.state = stateIdle
	now := s.now()
	m.core.sources.begin(now)
	m.core.sources.told(r.Source, r.Rows, r.submitted)
	m.mu.Unlock()
}

// ended counts the end of an accepted request for its source.
func (c *core) ended(r *Request) {
	if r.Parts.answered() {
		r.state = stateIdle
		c.sources.answered(r.source, r.Rows)
		return
	}
	r.state, r.submitted = stateUntold, c.sources.now
	c.sources.left(r.source, r.Rows)
	c.sources.answeredPart(r.source, r.Rows, r.Parts)
}

// A pending is the answers of a source whose clients wait for other parts. It is part of the
// source.
type pending struct {
	untold   int    // rows
	parts    *Parts // of the latest one
	answered int64  // when that was
	place    int    // in callers.untold
	awaited  bool   // by the present gathering
}

// answeredPart counts an answer whose client waits for other parts.
func (cs *callers) answeredPart(s *source, rows int, p *Parts) {
	if s.untold == 0 {
		s.place = len(cs.untold)
		cs.untold = append(cs.untold, s)
	}
	s.untold += rows
	s.parts, s.answered = p, cs.now
	if s.caller {
		cs.away += rows
	}
}

// told counts the answer of a client that had one of the source's parts before.
func (ss *sources) told(id uint64, rows int, answered int64) {
	ss.rests.add(ss.now - answered)
	if s := ss.byID[id]; s != nil && s.untold > 0 { // else it was forgotten
		ss.dropUntold(s, min(rows, s.untold))
		ss.owe(s, rows)
	}
}

// dropUntold removes rows of a source whose client waits for other parts.
func (cs *callers) dropUntold(s *source, rows int) {
	if s.awaited {
		s.awaited = false
		cs.awaited--
	}
	if s.caller {
		cs.away -= rows
	}
	if s.untold -= rows; s.untold > 0 {
		return
	}
	last := len(cs.untold) - 1
	other := cs.untold[last]
	other.place, cs.untold[s.place] = s.place, other
	cs.untold[last] = nil
	cs.untold = cs.untold[:last]
	s.pending = pending{}
}

// coming is rows of callers that wait for other parts, by the class of the time until they come,
// within the horizon.
type coming struct {
	classes [delayClasses]int
	rows    int
}

// again returns what comes, by the time since from.
func (cs *callers) again(from int64) (c coming) {
	if len(cs.untold) == 0 {
		return c
	}
	rest, think := cs.rests.within(mostRests), cs.delays.median()
	for _, s := range cs.untold {
		if wait := s.comesBy(cs.now, rest, think) - from; wait <= cs.horizon {
			c.classes[delayClass(wait)] += s.untold
			c.rows += s.untold
		}
	}
	return c
}

// mostRests is the share of the rests that are expected to be as long as the present one.
const mostRests = 0.9

// comesBy is by when the rows of a source come whose client waits for other parts; never: that is
// not known. As long as these are not all executing, they are expected to take as long as most
// others took from the answer to this model's part: rest. think is the time after the client's
// answer.
func (s *source) comesBy(now, rest, think int64) int64 {
	switch by := s.parts.by(now); {
	case !s.caller:
	case by < never:
		return by + think
	case rest > 0 && s.answered+rest >= now:
		return s.answered + rest + think
	}
	return never
}

// await marks the sources whose rows come by until, and leaveOff ends that.
func (cs *callers) await(until int64) {
	rest, think := cs.rests.within(mostRests), cs.delays.median()
	for _, s := range cs.untold {
		if s.comesBy(cs.now, rest, think) <= until {
			s.awaited = true
			cs.awaited++
		}
	}
}

func (cs *callers) leaveOff() {
	if cs.awaited == 0 {
		return
	}
	for _, s := range cs.untold {
		s.awaited = false
	}
	cs.awaited = 0
}

// balance leaves rows of callers to the next batch, so that of two groups, of which one is here
// while other parts of the other one execute, none has more than half of the rows, if that pays: in
// turn each takes the longer of the time here and of the rest, while one group of all takes both.
// Otherwise groups stay as unequal as trials and chance have made them. Rows of one source stay
// together, as in halved.
//
// One group of all is divided for a trial, within the share of time for that, whatever is believed:
// what the rest takes for half of the rows is not known here. If one group is faster, the two meet
// again.
func (c *core) balance(q *queue, w *window, p *plan) {
	cs := &c.sources.callers
	if cs.rests.total == 0 || w.bestTime > 0 || p.granted || p.trials == nil || c.rows > cs.queued {
		return
	}
	if _, lanes := c.level(); lanes > 1 {
		return // see levelled
	}
	all, rest := cs.everywhere(), float64(cs.rests.median())
	half := q.together(w.at, (all+1)/2)
	if half >= w.rows || q.item(w.at).deadline < p.start+2*p.planned(half) {
		return
	}
	here, other := p.mean(float64(all)), rest+float64(cs.delays.median())
	trial := cs.away == 0
	if trial && w.rows == all && p.trials.divided == 0 && other > leastGain*here ||
		!trial && 2*max(p.mean(float64(half)), rest) <= other+here {
		w.rows, w.room, w.why, w.divides = half, half, CloseTogether, trial
	}
}
