package scheduler

import (
	"math"
	"sort"
	"time"
)

// A Need is how many replicas like the live ones would meet the deadlines of the arriving requests,
// and why.
//
//	Load = (Arriving + Waiting ÷ patience) ÷ (0.8 × Worth) + Callers ÷ Group
//
// At a load of 0.8, 99 % of the requests are answered in time (see the table in DESIGN.md), and at
// 1 the queue grows without bound. Arriving includes the rows of refused requests, which more
// replicas could serve, and those of requests to several models that were refused before they came
// here (Missed).
//
// Of streams that keep only their newest frames, one frame in each [ModelConfig].StreamInterval
// counts as arriving, and none as waiting. Without a StreamInterval none counts: they are served as
// fast as the replicas are, and a camera that sends more than that needs no more.
//
// Nor do clients count that ask again on each answer, whose rate is the replicas' own: with faster
// replicas they ask more often, so by their rate they would always need more. They need as many as
// answer them within the objective, in batches that they share.
//
// All load but that of streams is at most as many requests as were unanswered at once in the last
// minute: more replicas would get nothing. This bound does not apply while requests are refused.
//
// Load does not follow noise: it begins as the mean of the first four seconds, and then changes
// only by more than chance explains. It rises within seconds, and falls with the rate over a
// minute.
type Need struct {
	// Replicas is Load rounded up, and at least 1, except that it is 0 if no request has arrived
	// for a minute and none waits.
	Replicas int
	// Load is the number before rounding, which can be summed over servers that share containers.
	Load float64
	// Arriving is the rows per second that Load is computed from.
	Arriving float64
	// Callers is how many rows of clients that ask again on each answer were in play at once in the
	// last minute, and Group how many of them a replica answers within the objective and their
	// deadlines.
	Callers int
	Group   float64
	// Waiting is the number of rows, beyond the next batch of each replica, that have waited for
	// seconds.
	Waiting int
	// Worth is how many rows per second an average replica executes, in batches as large as the
	// requests' deadlines allow; 0: no replica has answered enough batches, and Replicas is a guess
	// of 1.
	Worth float64
}

const (
	neededShare = 0.8
	// By how many standard errors the load must differ from the one last reported, in addition to a
	// share of it: arrivals may be more even than chance, or more bursty.
	surelyMore    = 3
	surelyLess    = 1
	neededMargin  = 0.05
	shortest      = int64(4e9)  // ns, of the windows in which arrivals are counted; then double ...
	longest       = int64(64e9) // ... up to this one
	demandPause   = int64(1e9)  // ns between marks
	demandMarks   = int(longest/demandPause) + 2
	newcomer      = 10e9 // ns that a replica takes to start: waiting rows are served over as long
	standingMarks = int(shortest / demandPause)
)

// demand records, at most once a second, how many rows have arrived so far, and keeps the last
// minute.
type demand struct {
	next  int64 // when the next mark is due
	noted int   // marks stored so far; the latest is noted-1, modulo demandMarks
	marks [demandMarks]demandMark
	load  float64 // the load last reported
	worth float64 // of a replica, in rows per ns, last known; 0: never known
	group float64 // of callers, which a replica answers in time; known with worth
}

type demandMark struct {
	at                       int64
	arrived, wanted, squares uint64
	waiting, callers         int
}

// sample is called at every event, before anything is counted.
func (d *demand) sample(now int64, c *core) {
	if now < d.next {
		return
	}
	d.next = now + demandPause
	d.marks[d.noted%demandMarks] = demandMark{now, c.stats.arrived, c.stats.wanted, c.stats.squares, c.excess(),
		c.sources.inPlay()}
	d.noted++
}

// mark returns the mark that is the given number of marks before the latest one.
func (d *demand) mark(but int) *demandMark { return &d.marks[(d.noted-1-but)%demandMarks] }

// known returns how many marks there are since the time from.
func (d *demand) known(from int64) int {
	most := min(d.noted, demandMarks)
	return sort.Search(most, func(but int) bool { return d.mark(but).at < from })
}

// first returns the earliest mark of the last minute after which a request arrived; -1: there is
// none.
func (d *demand) first(now int64) int {
	first := d.known(now-longest) - 1
	for first > 0 && d.mark(first-1).arrived == d.mark(first).arrived {
		first--
	}
	return first
}

// A rate is a number of rows per nanosecond.
type rate struct{ mean, deviation float64 }

// over returns the rate in the window of span ns that ends now. In the last minute, nothing arrived
// before the mark first, so the window does not reach beyond it.
func (d *demand) over(span, now int64, c *counters, first int, variance float64) rate {
	n := d.known(now - span)
	if n == 0 {
		return rate{}
	}
	from := d.mark(n - 1)
	ns := float64(min(span, now-d.mark(first).at))
	// Unless a pause came before that mark, the one before it shows when the window began.
	if n <= first && from.at-d.mark(n).at < 2*demandPause {
		from = d.mark(n)
		ns = float64(now - from.at)
	}
	ns = max(ns, float64(demandPause))
	chance := float64(c.squares-from.squares) / (ns * ns)
	return rate{float64(c.wanted-from.wanted) / ns, math.Sqrt(max(chance, variance/ns))}
}

// variance returns the variance of the rate from one second to the next, times ns. It is computed
// from differences between neighbouring seconds; a step of the load changes only one of these.
func (d *demand) variance(first int) float64 {
	sum, n, last := 0.0, 0, math.NaN()
	for but := first; but > 0; but-- {
		from, to := d.mark(but), d.mark(but-1)
		ns := float64(to.at - from.at)
		r := float64(to.wanted-from.wanted) / ns
		if !math.IsNaN(last) {
			sum += (r - last) * (r - last) / 2 * ns
			n++
		}
		last = r
	}
	if n < standingMarks {
		return 0
	}
	return sum / float64(n)
}

// standing returns how many rows have waited beyond the next batches throughout the last seconds: a
// queue that comes and goes needs no additional replica.
func (d *demand) standing(now int64, c *core) int {
	rows := c.excess()
	for but := range min(d.noted, standingMarks) {
		if m := d.mark(but); m.at >= now-shortest {
			rows = min(rows, m.waiting)
		}
	}
	return rows
}

// callers returns how many rows of callers were in play at once since a mark, 0 being the latest.
func (d *demand) callers(since int, c *core) int {
	rows := c.sources.inPlay()
	for but := range since + 1 {
		rows = max(rows, d.mark(but).callers)
	}
	return rows
}

// excess returns how many rows of others than callers wait beyond one full batch for every batch
// that may execute at once.
func (c *core) excess() int {
	rows := c.rows - min(c.rows, c.sources.queued) - c.capacity.batch
	if rows > 0 {
		rows -= c.streams.waitingInTurn()
	}
	return max(0, rows)
}

// need computes how many replicas are needed.
func (c *core) need(now int64) Need {
	d := &c.demand
	n := Need{Waiting: d.standing(now, c)}
	first := d.first(now)
	if (first < 0 || d.mark(first).arrived == c.stats.arrived) && c.rows == 0 {
		d.load = 0
		return n
	}
	c.sources.begin(now)
	n.Callers = d.callers(first, c)
	patience := c.patience(now)
	worth := c.worth(patience)
	n.Worth, n.Group = 1e9*worth, d.group
	if worth == 0 {
		d.load = 0
		n.Load, n.Replicas = 1, 1
		return n
	}
	waiting := float64(n.Waiting) / max(patience, newcomer)
	least, long := 0.0, rate{}
	if first >= 0 {
		variance := d.variance(first)
		for span := shortest; span <= longest; span *= 2 {
			long = d.over(span, now, &c.stats, first, variance)
			least = max(least, (1-neededMargin)*long.mean-surelyMore*long.deviation)
		}
	}
	most := max(least, (1+neededMargin)*long.mean+surelyLess*long.deviation)
	perReplica := neededShare * worth
	// No load has been reported yet that would have to stay steady. A number from the few rows of
	// the first second could stay too low for a minute.
	if d.load == 0 || first >= 0 && now-d.mark(first).at < shortest {
		d.load = (long.mean + waiting) / perReplica
	}
	d.load = min(max(d.load, (least+waiting)/perReplica), (most+waiting)/perReplica, math.MaxInt32)
	load := d.load
	if n.Callers > 0 {
		load += float64(n.Callers) / n.Group
	}
	n.Load = min(load, d.load*c.promised(now)+c.parallel(now))
	n.Arriving = 1e9 * max(0, d.load*perReplica-waiting)
	n.Replicas = max(1, int(math.Ceil(n.Load-1e-9)))
	return n
}

// promised returns the share of the last minute's wanted rows that frames of streams are which keep
// only their newest.
func (c *core) promised(now int64) float64 {
	from, _ := c.past.recent(now, &c.stats)
	return float64(c.stats.promised-from.promised) / max(1, float64(c.stats.wanted-from.wanted))
}

// parallel returns how many replicas could have executed something at once in the last minute: one
// for each unanswered request, or more where requests are larger than a batch. If requests were
// refused there is no bound: what was unanswered then says nothing of what was asked.
func (c *core) parallel(now int64) float64 {
	from, peak := c.past.recent(now, &c.stats)
	if c.stats.missed > from.missed {
		return math.Inf(1)
	}
	for _, o := range [...]Outcome{OutcomeUnavailable, OutcomeQueueRows, OutcomeQueueBytes, OutcomeQueueShapes,
		OutcomePredicted} {
		if c.stats.outcomes[o] > from.outcomes[o] {
			return math.Inf(1)
		}
	}
	batch := 1
	for _, r := range c.replicas {
		batch = max(batch, r.max)
	}
	rows := 1.0 // of a request, as the mean row sees it
	if wanted := c.stats.wanted - from.wanted; wanted > 0 {
		rows = float64(c.stats.squares-from.squares) / float64(wanted)
	}
	return float64(peak) * math.Ceil(max(1, rows/float64(batch)))
}

// A Miss is rows that a request to several models would have asked of one of them, if it had not
// been refused before for want of time or of replicas.
type Miss struct {
	Rows int
	// Newest: they are of a stream that keeps only its newest frames, and no load, as ever.
	Newest bool
	// Late: the request was not, or could not be, in time, and no model refused it. If that is so
	// with any number of replicas, a client gets errors at once and may send thousands of requests
	// in a second, so it lifts no bound of Need.
	Late bool
}

// Missed counts rows that did not come. For Need they have arrived: a model that no request reaches
// would never be found to be too small.
func (m *Model) Missed(miss Miss) {
	fx, now := m.begin()
	c := &m.core.stats
	if c.arrived += uint64(miss.Rows); !miss.Newest {
		c.want(miss.Rows)
	}
	if !miss.Newest && !miss.Late {
		c.missed += uint64(miss.Rows)
	}
	m.end(fx, now)
}

// Need returns how many replicas are needed.
func (m *Model) Need() Need {
	now := m.sched.now()
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.core.need(now)
}

// patience returns the mean time in ns from the arrival of the last minute's requests until their
// deadlines, or the objective if none had a deadline.
func (c *core) patience(now int64) float64 {
	from, _ := c.past.recent(now, &c.stats)
	if bound := c.stats.bound - from.bound; bound > 0 {
		return max(1e6, 1e3*float64(c.stats.timeLeft-from.timeLeft)/float64(bound))
	}
	return float64(c.cfg.Objective)
}

// worth returns how many rows per nanosecond an average live replica executes, and notes how many
// callers it serves. Replicas that have just started do not count: they have not been tried with
// large batches yet, and their low numbers would cause further replicas to be started. If there are
// no other replicas, the worth stays as it was; 0: no replica has answered enough batches.
func (c *core) worth(patience float64) float64 {
	mean := func(batches int) (worth, group float64) {
		n := 0.0
		for _, r := range c.replicas {
			if r.state == replicaLive && r.profile.count >= batches {
				worth += r.capacity(c, patience)
				group += r.group(c, patience)
				n++
			}
		}
		return worth / max(1, n), group / max(1, n)
	}
	d := &c.demand
	if worth, group := mean(coldBatches); worth > 0 {
		d.worth, d.group = worth, group
	} else if d.worth == 0 {
		worth, d.group = mean(2) // the first batch includes one-time costs
		return worth
	}
	return d.worth
}

// capacity returns how many rows the replica executes per nanosecond, in batches of which two fit
// into patience, since a row may find one executing and is in the next. Where one row takes more
// than half of patience, as on an accelerator that takes as long for 32 rows as for one, batches
// may take aloneFactor times as long as one row, but not more than patience.
func (r *Replica) capacity(c *core, patience float64) float64 {
	most := patience / 2
	if one := float64(r.profile.planned(1)); one > most {
		most = aloneFactor * one
		if one < patience {
			most = min(most, patience)
		}
	}
	rows := r.rowsWithin(most, r.strategy.limit(r.wholePlan(c)))
	if t := r.profile.typical(rows); t > 0 {
		return float64(rows*r.concurrency) / t
	}
	return 0
}

// group returns how many rows of callers the replica answers within the objective and patience.
// They share a batch, or where nothing waits for them two batches: that which executes, and the
// next. Sizes that were never tried count: with more replicas each is tried only with its share.
func (r *Replica) group(c *core, patience float64) float64 {
	p := r.wholePlan(c)
	allowed, _ := p.allowed()
	most, batches := min(patience, float64(allowed)), 1
	if !*c.cfg.Together {
		batches = 2
		if half := most / 2; float64(r.profile.planned(1)) <= half {
			most = half
		}
	}
	return float64(batches * r.rowsWithin(most, p.max) * r.concurrency)
}

// wholePlan is plan for a shared container as a whole: rows that arrive at the other servers are
// counted there.
func (r *Replica) wholePlan(c *core) *plan {
	saved := r.sharing.share
	r.sharing.share = share{}
	p := r.plan(c, 0, 0)
	r.sharing.share = saved
	return p
}

// rowsWithin returns how many rows a batch may have that takes most at most, up to a limit; at
// least one.
func (r *Replica) rowsWithin(most float64, limit int) int {
	return max(1, sort.Search(limit, func(n int) bool { return float64(r.profile.planned(n+1)) > most }))
}

// leaveOut takes back what counted as wanted: the request of a caller that was accepted.
func (c *counters) leaveOut(rows int) {
	c.wanted -= uint64(rows)
	c.squares -= uint64(rows) * uint64(rows)
}

// arrive counts a request, however it ends.
func (c *counters) arrive(r *Request, now int64) {
	c.arrived += uint64(r.Rows)
	if r.deadline != never && r.deadline > now {
		c.bound++
		c.timeLeft += uint64(r.deadline-now) / 1e3
	}
}

// want counts the rows of a request as load.
func (c *counters) want(rows int) {
	c.wanted += uint64(rows)
	c.squares += uint64(rows) * uint64(rows)
}

// due reports whether a frame that arrives now is the one that is to be answered in this interval
// (0: there is none). On average that is one in each interval, also if frames arrive unevenly.
func (s *stream) due(interval time.Duration, now int64) bool {
	if interval == 0 || now < s.next {
		return false
	}
	s.next = max(s.next, now-int64(interval)) + int64(interval)
	return true
}
