// Package rounds decides whose rows a container that several servers share executes next.
//
// A container has sessions with several servers. Each server has rows waiting for the container,
// and knows nothing of the other servers. If each made batches for itself, an execution would have
// the rows of one server only: with N servers, one Nth of the waiting rows, and deadlines of a few
// executions leave no time for N executions one after the other. So an execution takes rows of all
// servers:
//
//	offer: rows wait here --> grant: send now --> batch, or the grant back --> execution of all
//
// A round begins when the container can execute and has been offered rows, or a little later where
// servers are about to offer some (see callers.go): every server that has offered some is granted a
// batch, and told how many rows wait elsewhere. It makes its batch then, of the rows that have
// arrived by then. The round ends when each server has sent a batch or given its grant back, or
// when the round's patience runs out. The batches that have arrived are executed together, as far
// as there is room and the inputs can be joined; the rest go first in the next execution.
//
// Where an execution has no room for all servers, those with the most urgent deadlines get grants,
// but servers that are ahead of another by more than [Lead] executions' rows come last. So a server
// that always claims to be urgent gains that much, once.
//
// A [Table] is pure: it has no clock, no lock and no goroutine, calls no other code, and returns
// the actions to take.
package rounds

import (
	"cmp"
	"slices"
	"time"
)

const (
	// Lead is how many executions' rows a server may be ahead of other servers.
	Lead = 4
	// A claim of rows counts up to trust times the rows that the server sent lately, plus
	// trustMore.
	trust     = 4
	trustMore = 16
	// No number of a server counts for more rows, so that sums of them are numbers of rows, too;
	// nor a deadline for a longer time.
	mostRows = 1 << 20
	mostDue  = time.Hour

	leastPatience = 1 * time.Millisecond
	mostPatience  = 20 * time.Millisecond
	firstPatience = 5 * time.Millisecond
	quick         = 500 * time.Microsecond // behind shorter executions, the next is granted ahead
)

// A Batch has the rows that a server sends for an execution.
type Batch[B any] struct {
	Rows  int
	Grant uint64 // the grant that it uses; 0: none, the server does not wait for grants
	// Best is how many rows of an execution would be best for the server; 0: unknown.
	Best int
	Left int // rows that still wait at the server
	Body B

	seat *Seat[B]
	came time.Duration // when it arrived
	held bool          // an execution began without it while it was queued
}

// An Execution has the batches that are executed together, in one call.
type Execution[B any] struct {
	Batches []Batch[B]
	Rows    int
	began   time.Duration
}

// Queued returns how long batch i waited because an earlier execution began without it; 0: none
// did.
func (e *Execution[B]) Queued(i int) time.Duration {
	if b := &e.Batches[i]; b.held {
		return e.began - b.came
	}
	return 0
}

// A Grant is to be sent to a server.
type Grant[B any] struct {
	Seat *Seat[B]
	ID   uint64
	// Rows that wait at the server and at the others of the same round, as far as is known. Both
	// counts are equally old, so that the shares of all servers add up to one execution.
	Here, Elsewhere int
	Target          int // rows of the execution, for all servers to expect; 0: unknown
}

// A Seat is a session with a server.
type Seat[B any] struct {
	grants bool // it waits for grants
	wants  bool // rows wait, as far as is known
	// How many rows wait, as far as the server is believed: the mean over its answers to grants,
	// and the rows that it has offered since the latest of these answers.
	mean    float64
	offered int
	due     time.Duration // the most urgent deadline; 0: none
	sent    int           // rows of the largest of its latest batches
	grant   uint64        // outstanding; 0: none
	asked   time.Duration // when it was granted
	reply   time.Duration // how long it takes to answer a grant, smoothed
	served  float64       // rows executed, counted from the least of all seats at its joining
	round   uint64        // the latest round in which it was granted
	waited  bool          // the open round waits for its answer
	again   uint64        // the latest round in which its rows started over
	habit
}

// A Table has the seats of a container, and the batches that they have sent. The zero value is not
// usable.
type Table[B any] struct {
	fit    func(a, b B) bool // whether two batches can be in one execution
	lanes  int               // executions at once
	max    int               // rows of an execution; 0: any number
	joined []*Seat[B]
	queue  []Batch[B] // in the order in which they are executed
	busy   int        // executions under way
	open   bool       // a round is open
	until  time.Duration
	round  uint64 // the latest
	number uint64
	took   time.Duration // the latest execution
	size   float64       // rows of an execution, smoothed
	best   float64       // rows of an execution that servers find best, smoothed; 0: unknown
	costs  costs
}

// New returns a table for a container that executes lanes batches at once, each of at most max
// rows; 0: as many as the servers send. fit reports whether two batches can be in one execution.
func New[B any](lanes, max int, fit func(a, b B) bool) *Table[B] {
	return &Table[B]{fit: fit, lanes: lanes, max: max, took: quick}
}

// Join adds a session with a server. grants says whether the server waits for grants; a server that
// does not may send at any time.
func (t *Table[B]) Join(grants bool) *Seat[B] {
	s := &Seat[B]{grants: grants, reply: firstPatience / 4}
	for i, o := range t.joined {
		if i == 0 || o.served < s.served {
			s.served = o.served
		}
	}
	t.joined = append(t.joined, s)
	return s
}

// Leave removes a session, which is granted nothing more. The batches that it has sent are
// executed.
func (t *Table[B]) Leave(s *Seat[B]) {
	t.joined = slices.DeleteFunc(t.joined, func(o *Seat[B]) bool { return o == s })
	s.waited, s.wants, s.grants = false, false, false
}

// Drop removes the batches of a session that are not being executed, and returns them.
func (t *Table[B]) Drop(s *Seat[B]) (dropped []B) {
	t.queue = slices.DeleteFunc(t.queue, func(b Batch[B]) bool {
		if b.seat == s {
			dropped = append(dropped, b.Body)
		}
		return b.seat == s
	})
	return dropped
}

// Offer records that rows wait at a server. Their most urgent deadline is in due; 0: they have no
// deadline.
func (t *Table[B]) Offer(s *Seat[B], rows int, due, now time.Duration) {
	if s.grant != 0 && now-s.asked > time.Second {
		s.grant = 0 // it has no grant any more, or it would not offer
	}
	s.returns(now, t.took)
	s.wants, s.offered, s.due = s.grants, max(1, s.believed(rows)), 0
	if due > 0 {
		s.due = now + min(due, mostDue)
	}
}

// Pass takes a grant back from a server. again is how many rows it has answered instead, as they
// would have been late, whose clients ask again at once: these may join the round.
func (t *Table[B]) Pass(s *Seat[B], grant uint64, again int, now time.Duration) {
	current := grant != 0 && grant == s.grant
	t.answered(s, grant, now)
	s.had(0)
	if current && again > 0 && s.again != s.round && !s.wants {
		s.again, s.round = s.round, 0
		s.expected, s.answered, s.offered = true, now, s.believed(again)
	}
}

// Arrive queues a batch that has arrived, with a grant or without.
func (t *Table[B]) Arrive(s *Seat[B], b Batch[B], now time.Duration) {
	b.seat, b.came = s, now
	b.Rows = min(b.Rows, cmp.Or(t.max, mostRows)) // nothing has looked at them yet
	b.Best, b.Left = min(b.Best, mostRows), min(b.Left, mostRows)
	t.answered(s, b.Grant, now)
	s.sent = max(b.Rows, s.sent*7/8)
	s.had(b.Rows + b.Left)
	s.wants = s.wants || s.grants && b.Left > 0
	t.queue = append(t.queue, b)
}

func (t *Table[B]) answered(s *Seat[B], grant uint64, now time.Duration) {
	if grant == 0 || grant != s.grant {
		return
	}
	s.grant = 0
	s.reply += (min(now-s.asked, mostPatience) - s.reply) / 8
	s.waited = false
}

// had records how many rows waited at the server when it answered a grant. Until the next grant,
// other containers take rows there, so the latest number alone tells little, and the mean more:
// with the latest number, a server with many rows was asked for few and another for more than it
// had, and executions were a sixth smaller than all servers had expected.
func (s *Seat[B]) had(rows int) {
	now := float64(s.believed(rows))
	if s.mean == 0 {
		s.mean = now
	}
	s.mean += (now - s.mean) / 8
	s.offered = 0
}

// believed returns how many of the rows that a server claims to have count.
func (s *Seat[B]) believed(rows int) int { return min(rows, trust*s.sent+trustMore) }

// Done records that an execution is over.
func (t *Table[B]) Done(e *Execution[B], now time.Duration) {
	t.busy--
	t.took = now - e.began
	t.size += (float64(e.Rows) - t.size) / 8
	t.costs.add(e.Rows, t.took)
	for i := range e.Batches {
		e.Batches[i].seat.answers(now)
	}
}

// Idle reports whether no batch is queued or being executed.
func (t *Table[B]) Idle() bool { return t.busy == 0 && len(t.queue) == 0 }

// Next returns the actions that follow from any of the calls above: call it until it returns
// neither grants nor an execution. wake is when to call it again at the latest; 0: it need not be
// called.
func (t *Table[B]) Next(now time.Duration) (grants []Grant[B], e *Execution[B], wake time.Duration) {
	if until := t.hold(now); until > now {
		return nil, nil, until
	}
	if t.busy < t.lanes || t.busy == t.lanes && t.took < quick {
		if len(t.queue) > 0 {
			t.begins(now)
		}
		if grants = t.grant(now); len(grants) > 0 {
			return grants, nil, 0
		}
	}
	if !t.open || t.busy >= t.lanes {
		return nil, nil, 0
	}
	if now < t.until && slices.ContainsFunc(t.joined, func(s *Seat[B]) bool { return s.waited }) {
		return nil, nil, t.until
	}
	for _, s := range t.joined {
		s.waited = false
	}
	t.open = false
	if len(t.queue) == 0 {
		return nil, nil, 0
	}
	return nil, t.begin(now), 0
}

// begins opens a round, if none is open.
func (t *Table[B]) begins(now time.Duration) {
	if !t.open {
		t.open, t.until = true, now
		t.round++
	}
}

// grant grants a batch of the open round to the servers that want one, and opens a round if none is
// open.
func (t *Table[B]) grant(now time.Duration) []Grant[B] {
	var asked []*Seat[B]
	places := t.max
	for _, s := range t.joined {
		if t.granted(s) {
			places--
		} else if s.wants && s.grant == 0 {
			asked = append(asked, s)
		}
	}
	if len(asked) == 0 || t.max > 0 && places <= 0 {
		return nil
	}
	if t.max > 0 && len(asked) > places {
		asked = choose(asked, places, Lead*max(1, t.size))
	}
	all := 0
	for _, s := range t.joined {
		if t.granted(s) || slices.Contains(asked, s) {
			all += s.claim()
		}
	}
	t.begins(now)
	var grants []Grant[B]
	patience := leastPatience
	for _, s := range asked {
		t.number++
		s.wants, s.waited, s.grant, s.asked, s.round = false, true, t.number, now, t.round
		patience = max(patience, min(4*s.reply, mostPatience))
		grants = append(grants, Grant[B]{s, t.number, s.claim(), all - s.claim(), int(t.best + 0.5)})
	}
	t.until = max(t.until, now+patience)
	return grants
}

// granted reports whether the server has had its grant of the open round.
func (t *Table[B]) granted(s *Seat[B]) bool { return t.open && s.round == t.round }

// claim is how many rows wait at the server, as far as is known.
func (s *Seat[B]) claim() int { return max(s.offered, int(s.mean+0.5)) }

// choose returns as many of the seats as there are places: first the most urgent of those that are
// not ahead of another seat by more than lead rows.
func choose[B any](asked []*Seat[B], places int, lead float64) []*Seat[B] {
	least := asked[0].served
	for _, s := range asked {
		least = min(least, s.served)
	}
	ahead := func(s *Seat[B]) bool { return s.served > least+lead }
	slices.SortStableFunc(asked, func(a, b *Seat[B]) int {
		switch x, y := ahead(a), ahead(b); {
		case x != y && x:
			return 1
		case x != y:
			return -1
		case a.due == b.due:
			return 0
		case b.due == 0 || a.due != 0 && a.due < b.due:
			return -1
		}
		return 1
	})
	return asked[:places]
}

// begin takes as many batches from the queue as may be in one execution, in the order in which they
// arrived. So a batch that had no place in the last execution is in this one.
func (t *Table[B]) begin(now time.Duration) *Execution[B] {
	e := &Execution[B]{began: now}
	best, of := 0, 0
	kept := t.queue[:0]
	for _, b := range t.queue {
		if len(e.Batches) > 0 && (t.max > 0 && e.Rows+b.Rows > t.max || !t.fit(e.Batches[0].Body, b.Body)) {
			b.held = true
			kept = append(kept, b)
			continue
		}
		if b.Best > 0 {
			best, of = best+b.Best*b.Rows, of+b.Rows
		}
		e.Batches = append(e.Batches, b)
		e.Rows += b.Rows
		b.seat.served += float64(b.Rows)
		b.seat.executing++
	}
	if of > 0 {
		if t.best == 0 {
			t.best = float64(best) / float64(of)
		}
		t.best += (float64(best)/float64(of) - t.best) / 4
	}
	clear(t.queue[len(kept):])
	t.queue = kept
	t.busy++
	return e
}
