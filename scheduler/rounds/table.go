// Package rounds decides whose rows a container executes next that several servers share.
//
// A container has sessions with several servers, each of which has rows waiting for it, and knows
// nothing of the others. If each made batches for itself, an execution would have the rows of one
// server only: with N servers a Nth of those that wait, and with deadlines of a few executions
// there is no time for N of them one after the other. So an execution takes rows of all of them:
//
//	offer: rows wait here ──► grant: send now ──► batch, or the grant back ──► execution of all
//
// A round begins when the container can execute and has been offered rows: every server that has
// offered some is granted a batch, and told how many rows wait elsewhere. Its batch is made then,
// with what has arrived until then. The round ends when each has sent a batch or given the grant
// back, or with its patience. What has come is executed together, as far as there is room and the
// inputs can be joined; the rest goes first in the next one.
//
// Where an execution has no room for all servers, those with the most urgent deadlines are granted,
// but none whose executions are ahead of another's by more than [Lead] times what one takes. So a
// server that always claims to be urgent gains that much, once.
//
// A [Table] is pure: it has no clock, no lock and no goroutine, and calls no other code. What is to
// be done is returned.
package rounds

import (
	"slices"
	"time"
)

const (
	// Lead is by how many of its rows' executions a server may be ahead of others.
	Lead = 4
	// A claim of rows counts up to trust times what the server has sent lately, and trustMore.
	trust     = 4
	trustMore = 16

	leastPatience = 1 * time.Millisecond
	mostPatience  = 20 * time.Millisecond
	firstPatience = 5 * time.Millisecond
	quick         = 500 * time.Microsecond // executions that are so short are asked for ahead
)

// A Batch is what a server sends for an execution.
type Batch[B any] struct {
	Rows  int
	Grant uint64 // the grant that it uses; 0: none, from a server that waits for none
	// Best is how many rows of an execution would be best as seen from the server; 0: unknown.
	Best int
	Left int // rows that still wait at the server
	Body B

	seat *Seat[B]
	came time.Duration // when it arrived
	held bool          // an execution went before it that it was there for
}

// An Execution is batches that are executed together, in one call.
type Execution[B any] struct {
	Batches []Batch[B]
	Rows    int
	began   time.Duration
}

// Queued is how long a batch has waited for an execution before this one.
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
	// Rows that wait in the server and in the others of the same round, as far as is known. Both
	// are as old, so that the shares of all servers add up to one execution.
	Here, Elsewhere int
	Target          int // rows of the execution, for all to expect; 0: unknown
}

// A Seat is a session with a server.
type Seat[B any] struct {
	grants bool // it waits for grants
	wants  bool // rows wait, as far as is known
	// How many wait, as far as it is believed: the mean of what it said with its answers to grants,
	// and what it has offered since the latest of them.
	mean    float64
	offered int
	due     time.Duration // the most urgent deadline; 0: none
	sent    int           // rows of its latest batches, the most of them
	grant   uint64        // outstanding; 0: none
	asked   time.Duration // when it was granted
	reply   time.Duration // how long it takes to answer a grant, smoothed
	served  float64       // rows executed, less what all others had when it joined
	round   uint64        // in which it was granted last
	waited  bool          // the open round waits for it
}

// A Table has the seats of a container, and what they have sent. The zero value is not usable.
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
	size   float64       // rows of executions, smoothed
	best   float64       // rows of them that servers find best, smoothed; 0: unknown
}

// New returns a table for a container that executes lanes batches at once, each of at most max
// rows; 0: as many as the servers send. fit says whether two batches can be in one execution.
func New[B any](lanes, max int, fit func(a, b B) bool) *Table[B] {
	return &Table[B]{fit: fit, lanes: lanes, max: max, took: quick}
}

// Join adds a session with a server. grants says whether it waits for grants; one that does not
// sends when it likes.
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

// Leave removes a session, which is granted nothing more. What it has sent is executed.
func (t *Table[B]) Leave(s *Seat[B]) {
	t.joined = slices.DeleteFunc(t.joined, func(o *Seat[B]) bool { return o == s })
	s.waited, s.wants, s.grants = false, false, false
}

// Drop returns what a session has sent and is not being executed, which will not be.
func (t *Table[B]) Drop(s *Seat[B]) (dropped []B) {
	t.queue = slices.DeleteFunc(t.queue, func(b Batch[B]) bool {
		if b.seat == s {
			dropped = append(dropped, b.Body)
		}
		return b.seat == s
	})
	return dropped
}

// Offer says that rows wait at a server, the most urgent for as long as due; 0: they have no
// deadline.
func (t *Table[B]) Offer(s *Seat[B], rows int, due, now time.Duration) {
	if s.grant != 0 && now-s.asked > time.Second {
		s.grant = 0 // it has no grant, or it would not offer
	}
	s.wants, s.offered, s.due = s.grants, max(1, s.believed(rows)), 0
	if due > 0 {
		s.due = now + due
	}
}

// Pass takes a grant back.
func (t *Table[B]) Pass(s *Seat[B], grant uint64, now time.Duration) {
	t.answered(s, grant, now)
	s.had(0)
}

// Arrive takes a batch, with a grant or without.
func (t *Table[B]) Arrive(s *Seat[B], b Batch[B], now time.Duration) {
	b.seat, b.came = s, now
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

// had is told how many rows waited at the server when it answered a grant. Until the next one other
// containers take rows there, so that one number tells little of how many wait then, and the mean
// more: by the latest alone one with many rows was asked for few and another for more than it had,
// and executions were a sixth smaller than all servers had expected.
func (s *Seat[B]) had(rows int) {
	now := float64(s.believed(rows))
	if s.mean == 0 {
		s.mean = now
	}
	s.mean += (now - s.mean) / 8
	s.offered = 0
}

// believed is how many of the rows count that a server says it has.
func (s *Seat[B]) believed(rows int) int { return min(rows, trust*s.sent+trustMore) }

// Done says that an execution is over.
func (t *Table[B]) Done(e *Execution[B], now time.Duration) {
	t.busy--
	t.took = now - e.began
	t.size += (float64(e.Rows) - t.size) / 8
}

// Idle reports whether nothing waits to be executed, and nothing is.
func (t *Table[B]) Idle() bool { return t.busy == 0 && len(t.queue) == 0 }

// Next is what is to be done after any of the above: it is called until it returns nothing. wake is
// when to call it again at the latest; 0: it need not be.
func (t *Table[B]) Next(now time.Duration) (grants []Grant[B], e *Execution[B], wake time.Duration) {
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

// grant grants a batch of the open round to those that want one, and opens one if there is none.
func (t *Table[B]) grant(now time.Duration) []Grant[B] {
	var asked []*Seat[B]
	places := t.max
	for _, s := range t.joined {
		if t.open && s.round == t.round {
			places--
		}
		if s.wants && s.grant == 0 && (!t.open || s.round != t.round) {
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
		if t.open && s.round == t.round || slices.Contains(asked, s) {
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

// claim is how many rows wait at the server, as far as is known.
func (s *Seat[B]) claim() int { return max(s.offered, int(s.mean+0.5)) }

// choose returns as many of the seats as there are places for: the most urgent of those that are
// not ahead of others by more than lead rows.
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
// arrived. So one that had no place in the last execution is in this one.
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
