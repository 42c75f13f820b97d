package scheduler

import (
	"math"
	"time"
)

// A gathering is the wait of an idle replica for rows of callers whose answers have just left.
//
// It is the one case in which an idle replica does not take waiting rows at once. The wait is
// chosen by what it gains for all rows (bestWait), never passes a deadline, and ends early when
// nobody is owed a request any more, the batch is full, or another replica is free. Waits that
// bring less than half of the rows that were hoped for, and those for a trial, are paid from an
// allowance: a hundredth of the time that replicas execute. Rows that start over have one of their
// own, of as much. So no belief can cost more than that, and none is final.
type gathering struct {
	replica *Replica // nil: none waits
	began   int64
	until   int64
	due     int     // rows of callers that are owed a request
	from    int64   // when the newest of them were answered
	asked   uint64  // rows ever asked for when it began
	hoped   float64 // rows that were expected to come
	gain    float64 // factor by which more callers' rows are expected to be answered in a second
	probe   bool    // for a trial of a size that is believed to gain nothing
}

// A Wait is one wait of an idle replica for clients that ask again on each answer.
type Wait struct {
	Took  time.Duration
	Hoped int // rows that were expected to come
	Came  int // rows that came
	// Expected: how many times as many of their rows are answered in a second; 0: it was a trial.
	Gain float64
}

const (
	leastGain  = 0.02 // below it nothing waits
	wasteShare = 0.01 // of the time that replicas execute, for waits in vain and for starting over
	firstWaste = 0.25 // of one row's time, to begin with
	mostWaste  = 2.0  // of one row's time that is saved up
	// Where rows of others wait, a wait makes the cycle longer by this factor at most: the others
	// pay at most a fifth of their time for what callers gain.
	mostLater = 1.2
	// A batch of all waiting callers is taken if it has this share of the best known rate.
	undividedRate = 0.95
)

// gathers reports whether there is anybody to wait for.
func (c *core) gathers() bool { return c.sources.inPlay() > 0 && *c.cfg.Together }

// gather decides until when the window w for rep waits; now: it is sent. It may answer rows.
func (c *core) gather(rep *Replica, q *queue, w *window, p *plan, now int64, fx *effects) (until int64) {
	cs, g := &c.sources.callers, &c.gathering
	if cs.due == 0 && len(cs.untold) == 0 || p.granted || c.otherFree(rep, now) {
		return now
	}
	if g.replica == rep {
		if cs.due+cs.awaited > 0 && w.rows < max(w.room, p.trialRoom(q, w)) {
			return g.until
		}
		return now
	}
	if c.allowance <= 0 {
		return now
	}
	for _, probe := range []bool{false, true} {
		if next := c.wait(gathering{replica: rep, began: now, probe: probe}, q, w, p, fx); next.until > now {
			*g = next
			cs.await(g.until)
			return g.until
		}
	}
	return now
}

// wait completes the wait of a replica that could be sent w; its end is not after its beginning if
// the replica should not wait. For a trial, the larger size is taken to be as fast as the present
// one: a belief that it is too slow, also for the deadlines, must not keep it from being measured.
func (c *core) wait(next gathering, q *queue, w *window, p *plan, fx *effects) gathering {
	cs, now := &c.sources.callers, next.began
	next.due, next.from, next.asked = cs.due, now, cs.asking
	if cs.due > 0 {
		next.from = cs.newest.since
	}
	again := cs.again(next.from)
	if next.due += again.rows; next.due == 0 {
		return gathering{}
	}
	room, rows := w.room, w.rows+next.due
	switch {
	case next.probe:
		room, rows = p.trialRoom(q, w), w.rows
	case w.why == CloseDeadline:
		room = w.cap // its rows leave no time for others, and may start over
	}
	if w.rows >= room {
		return gathering{}
	}
	if c.bestWait(&next, p, room, &again); next.until == 0 && w.rows == 0 && cs.due > 0 {
		// A row that is late if it is sent now makes the next one late, too, which waits for it.
		next.until, next.hoped, next.gain = next.from+cs.delays.median(), float64(next.due)/2, 2
		next.probe = false
	}
	last := q.item(w.at).deadline - p.prof.planned(p.known(rows)) - (p.start - now)
	if next.until > max(now, last) && c.startOver(q, w, p, next.until, now, fx) == 0 {
		next.until = last
	}
	return next
}

// gatherLate is gather where no waiting row can be in time.
func (c *core) gatherLate(rep *Replica, start, now int64, fx *effects) (until int64) {
	if !c.gathers() || len(c.buckets.ordered) == 0 {
		return now
	}
	b := c.buckets.ordered[0]
	_, q := b.top()
	p := rep.plan(c, start, b.rowBytes)
	n := rep.strategy.limit(p)
	w := &window{at: q.start(), room: n, cap: n}
	if p.granted {
		rep.sharing.again = c.startOver(q, w, p, now+c.sources.delays.median(), now, fx)
		if rep.sharing.again > 0 {
			return never // there is nothing left for this grant; these rows come again
		}
	}
	return c.gather(rep, q, w, p, now, fx)
}

// gatherOffer decides until when the offer of a shared replica waits for callers; now: it is made;
// never: the answer to the replica's batch decides. It may answer rows. Its batch is made at the
// grant, which waits for nobody.
func (c *core) gatherOffer(rep *Replica, now int64, fx *effects) (until int64) {
	if !c.gathers() || len(c.buckets.ordered) == 0 {
		return now
	}
	b := c.buckets.ordered[0]
	_, q := b.top()
	p := rep.plan(c, now, b.rowBytes)
	p.granted = false
	n := rep.strategy.limit(p)
	w := &window{at: q.start(), rows: min(q.rows, n), room: n, cap: n}
	if !rep.busy() {
		return c.gather(rep, q, w, p, now, fx)
	}
	back := rep.callersExecuting()
	if back == 0 || c.allowance <= 0 {
		return now
	}
	next := gathering{began: now, due: c.sources.due + back, from: now}
	c.bestWait(&next, p, n, &coming{})
	end := rep.next().at
	if next.until == 0 || end == never {
		return now
	}
	until = end + next.until - now
	if q.head().deadline-p.prof.planned(p.known(w.rows+next.due)) < until {
		p.start = end // when they start over, if they should
		if before, _ := c.startsOver(q, w, p, next.due, until, end); before == 0 {
			return now
		}
	}
	return never
}

// callersExecuting is how many rows of callers its batches have.
func (r *Replica) callersExecuting() (rows int) {
	for _, b := range r.inflight {
		for i := range b.spans {
			if s := &b.spans[i]; s.req != nil && s.req.source.caller {
				rows += s.hi - s.lo
			}
		}
	}
	return rows
}

// bestWait sets the end of the wait that gains most, for a batch of at most room rows, or leaves it
// 0 if none gains enough.
//
// G rows of callers are in play: those that wait, and those whose answers have just left. r rows of
// others wait, and come however long it waits. F(w) is the share of answers that a request follows
// within w. The callers that miss one batch are in the next, so in the long run a batch has
//
//	x(w) = G / (2 − F(w))
//
// of them, and a cycle takes T(w) = w + s(x(w) + r), with s(n) the mean time of n rows: two groups
// of G/2 that wait for each other where w is 0, one group of G where all come in time. (It is
// renewal theory; x is the mean of the groups that stay unequal.) A wait gains for the callers what
// it adds to their rate x/T, and costs the others what it adds to the cycle.
//
// Where it waits for the rows of a trial, all sizes are taken to be as fast as the present one.
func (c *core) bestWait(g *gathering, p *plan, room int, again *coming) {
	cs := &c.sources.callers
	waiting := min(cs.queued, c.rows)
	others := float64(c.rows - waiting)
	callers, most := float64(waiting+g.due), max(float64(room)-others, 1)
	size := func(f float64) float64 { return min(callers/(2-f), most) }
	x0 := size(0)
	t0 := p.mean(x0 + others)
	if t0 <= 0 {
		return
	}
	best, came, answered := leastGain, 0.0, 0
	for class := range cs.delays.counts {
		n := cs.delays.counts[class]
		wait := delayEdge(class)
		if wait > cs.longest {
			return
		}
		came += float64(n)
		answered += again.classes[class]
		if n == 0 && again.classes[class] == 0 {
			continue
		}
		f := came / float64(max(cs.delays.total, 1))
		f += (float64(answered) - f*float64(again.rows)) / float64(g.due)
		x := size(f)
		t := float64(wait) + t0
		if !g.probe {
			t = float64(wait) + p.mean(x+others)
		}
		if others > 0 && t > mostLater*t0 {
			continue
		}
		faster := x / t / (x0 / t0)
		if gain := ((faster-1)*x - (t/t0-1)*others) / (x + others); gain > best {
			best = gain
			g.until, g.hoped, g.gain = g.from+wait, float64(g.due)*f, faster
		}
	}
}

// known is the size of an execution whose time counts for one with n rows of this server: for any
// beyond the largest measured one, that one. Twice the rows are guessed to take twice the time, so
// that a deadline between that and the truth would keep the size from being measured for ever.
func (p *plan) known(n int) int { return min(p.whole(n), max(p.prof.largest, 1)) }

// mean is the mean time of a batch of n rows. A size beyond the largest measured one counts as fast
// as that one.
func (p *plan) mean(n float64) float64 {
	whole := n
	if p.remote > 0 {
		whole *= 1 + float64(p.remote)/float64(p.local)
	}
	t := p.prof.typical(min(max(int(whole), 1), max(p.prof.largest, 1)))
	if lo := int(whole); lo >= 1 && lo < p.prof.largest {
		t += (whole - float64(lo)) * (p.prof.typical(lo+1) - t)
	}
	return t + p.prof.excess
}

// trialRoom is the size that may be tried once as many rows wait, if all waiting rows are in the
// window; else 0. Trials need waiting rows, which callers leave only for who waits for them:
// otherwise two clients that are believed to take twice as long together as alone would never meet,
// whatever the truth.
func (p *plan) trialRoom(q *queue, w *window) int {
	if w.rows < q.rows || w.bestTime > 0 || p.trials == nil || p.trials.next(p.rate(w.rows)) == 0 {
		return 0
	}
	n, _ := p.explored()
	return n
}

// startOver answers the rows that would be late after a wait, if that pays, and returns how many.
// It is charged with the time of the rows that would have been sent: not to the allowance of waits,
// since those that follow keep together who has just met.
func (c *core) startOver(q *queue, w *window, p *plan, until, now int64, fx *effects) (rows int) {
	before, cost := c.startsOver(q, w, p, c.sources.due, until, now)
	if before == 0 {
		return 0
	}
	c.restarts -= cost
	had := c.rows
	for head := q.head(); head != nil && head.deadline < before; head = q.head() {
		c.answer(head.req, OutcomeDeadlineNeverSent, errHopeless, fx)
	}
	return had - c.rows
}

// startsOver returns before which deadline rows should start over rather than be sent, if more rows
// are answered in time from then on, and at what cost; 0: none should. due rows join them at until.
// Groups of callers that meet at different times, each too late for the other's batch, would fail
// for ever. The clients of rows that are answered ask again at once, and are in the batch. Only
// callers pay for it.
func (c *core) startsOver(q *queue, w *window, p *plan, due int, until, now int64) (before, cost int64) {
	n, head := min(w.cap, q.rows+due), q.head().req
	took := p.prof.planned(p.known(n)) + p.start - now
	for n > 1 && until-now+took > head.deadline-head.submitted { // so many would be late again
		n--
		took = p.prof.planned(p.known(n)) + p.start - now
	}
	t := float64(until-now) + p.prof.typical(p.known(n))
	if c.restarts <= 0 || !*c.cfg.Shed || head.deadline >= until+took ||
		w.rows > 0 && float64(n)/t <= (1+leastGain)*float64(w.rows)/p.typical(w.rows) {
		return 0, 0
	}
	for at := q.start(); !q.end(at) && q.item(at).deadline < until+took; at = q.next(at) {
		r := q.item(at).req
		if !r.source.caller || r.spans != nil || r.Frame != nil || r.deadline-r.submitted < until-now+took {
			return 0, 0
		}
	}
	return until + took, int64(t * float64(w.rows) / float64(n))
}

// group fits a window to the groups that callers form: it takes all of them where only noise speaks
// against it, and leaves some to the other replicas where these have fewer, or to the next batch
// where its preparation takes long.
func (c *core) group(rep *Replica, q *queue, w *window, p *plan) {
	c.undivided(q, w, p)
	c.levelled(q, w, p)
	c.halved(rep, q, w, p)
}

// undivided takes all waiting rows into a window that leaves some out only because a smaller batch
// looks faster by no more than the profile's errors, or is a trial: callers that are answered apart
// from the others ask apart from then on. Some trials are left, so that an error is found.
func (c *core) undivided(q *queue, w *window, p *plan) {
	n, limit, rate := q.rows, w.cap, p.rate(w.rows)
	trial := w.bestTime > 0
	if trial {
		limit, _ = p.bounded()
		rate = float64(w.rows) / w.bestTime
	}
	head := q.head().deadline
	if n <= w.rows || n > limit || c.sources.queued < n ||
		p.rate(n) < undividedRate*rate || head < p.start+p.planned(n) {
		return
	}
	if trial && p.trials.divided == 0 {
		w.divides = true
		return
	}
	*w = window{at: q.start(), rows: n, room: p.roomFor(head, n, limit), cap: limit, why: CloseRate, left: CloseRate}
}

// apart is how soon another replica ends to be too close, as a share of the time between batches
// that end at equal distances.
const apart = 0.5

// levelled leaves rows of callers to other replicas, so that all have equally many, if another one
// ends early enough to take them. Otherwise groups stay as unequal as chance has made them.
//
// Beside rows of others, which are mostly older and so go first, it leaves as many more as half of
// these, but only to a replica that ends soon. Replicas that end at about the same time come to end
// together, as buses do: the first one takes all rows that have come, so that its batch is the
// longer one, and the second one is first next time. Then every row waits as long for a replica as
// if there were only one.
func (c *core) levelled(q *queue, w *window, p *plan) {
	others := c.rows - min(c.rows, c.sources.queued)
	most, lanes := c.level()
	mixed := others > 0 && others/2 < most
	if most += others; mixed {
		most -= others / 2
	}
	one := min(q.item(w.at).rows(), w.cap)
	most = (most + one - 1) / one * one // requests are not divided for it
	if w.rows <= most && w.room <= most {
		return
	}
	soon := p.typical(most)
	if mixed {
		soon *= apart / float64(lanes)
	}
	for _, r := range c.replicas {
		if r.sound() && len(r.inflight) > 0 && r.next().at <= p.start+int64(soon) {
			w.rows, w.room = min(w.rows, most), min(w.room, most)
			w.why, w.bestTime = CloseTogether, 0
			return
		}
	}
}

// level is how many rows of callers each execution has if all have equally many; the largest
// integer if there is one at a time. lanes is how many there are at once.
func (c *core) level() (rows, lanes int) {
	for _, r := range c.replicas {
		if r.sound() {
			lanes += r.concurrency
		}
	}
	if lanes < 2 {
		return math.MaxInt32 / 2, lanes
	}
	return (c.sources.everywhere() + lanes - 1) / lanes, lanes
}

// otherFree reports whether a replica other than rep could take rows now, or be offered them, if it
// is shared. So one replica at most waits.
func (c *core) otherFree(rep *Replica, now int64) bool {
	for _, other := range c.replicas {
		if other != rep && other.sound() && !other.busy() {
			if at, _ := other.ready(0, now); at <= now || other.sharing.on {
				return true
			}
		}
	}
	return false
}

// gathered ends the wait, if there is one.
func (c *core) gathered(now int64) {
	g := &c.gathering
	if g.replica == nil {
		return
	}
	came := c.sources.asking - g.asked
	if vain := float64(came) < g.hoped/2; vain || g.probe {
		c.allowance -= now - g.began
		if vain {
			c.stats.waitsInVain++
		}
	}
	c.stats.waits++
	c.stats.waitedRows += came
	c.lastWait = Wait{Took: time.Duration(now - g.began), Hoped: int(math.Round(g.hoped)), Came: int(came)}
	if !g.probe {
		c.lastWait.Gain = g.gain
	}
	c.sources.leaveOff()
	*g = gathering{}
}

// earn adds to what waits in vain may cost.
func (c *core) earn(rep *Replica, exec int64) {
	one := rep.profile.typical(1) + rep.profile.excess
	if c.sources.horizon == 0 {
		c.allowance, c.restarts = int64(firstWaste*one), int64(firstWaste*one)
	}
	c.sources.longest, c.sources.horizon = int64(one), int64(one)
	if rep.preparing.row > 0 {
		c.sources.horizon = int64(turnHorizon * one)
	}
	earned, most := int64(wasteShare*float64(exec)), int64(mostWaste*one)
	c.allowance, c.restarts = min(c.allowance+earned, most), min(c.restarts+earned, most)
}
