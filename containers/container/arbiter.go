package container

import (
	"cmp"
	"encoding/json"
	"sync"
	"time"

	"github.com/shivad/shivad/containers/internal/wire"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler/rounds"
)

// defaultMost is the maximum number of rows of an execution, for models that declare none, as in
// the server.
const defaultMost = 128

// An arbiter decides which server's rows are executed next while several servers use the model. It
// is the shell around a table of rounds. With one session it is idle, and batches do not pass
// through it.
//
// Messages are sent without mu.
type arbiter struct {
	server *server
	began  time.Time

	noticeOrder sync.Mutex // held while servers are told, so that each is told in order; before mu

	mu       sync.Mutex
	table    *rounds.Table[*Batch]
	seats    map[*session]*rounds.Seat[*Batch]
	sessions map[*rounds.Seat[*Batch]]*session
	shared   bool // there are several sessions
	timer    *time.Timer
}

func newArbiter(s *server) *arbiter {
	m := s.model
	most := cmp.Or(m.MaxBatch, defaultMost)
	if !m.batched() {
		most = 1
	}
	c := &arbiter{server: s, began: time.Now(), table: rounds.New(cap(s.slots), most, canJoin),
		seats: make(map[*session]*rounds.Seat[*Batch]), sessions: make(map[*rounds.Seat[*Batch]]*session)}
	c.timer = time.AfterFunc(time.Hour, c.run)
	c.timer.Stop()
	return c
}

func (c *arbiter) now() time.Duration { return time.Since(c.began) }

// canJoin reports whether two batches can be in one execution: their inputs differ only in their
// rows.
func canJoin(a, b *Batch) bool {
	x, y := a.header.Inputs, b.header.Inputs
	if len(x) != len(y) || !a.model.batched() || a.header.Rows < 1 || b.header.Rows < 1 {
		return false
	}
	for i := range x {
		if string(x[i].Name) != string(y[i].Name) || x[i].DType != y[i].DType || len(x[i].Shape) == 0 ||
			len(y[i].Shape) == 0 ||
			!x[i].Shape[1:].Equal(y[i].Shape[1:]) {
			return false
		}
	}
	return true
}

// join adds a session that has registered. grants reports whether its server waits for grants when
// it is told to.
func (c *arbiter) join(n *session, grants bool) {
	c.mu.Lock()
	s := c.table.Join(grants)
	c.seats[n], c.sessions[s], n.grants = s, n, grants
	c.mu.Unlock()
	c.tell()
}

// leave removes a session. The batches that it has sent are executed, or dropped.
func (c *arbiter) leave(n *session, drop bool) {
	c.mu.Lock()
	s := c.seats[n]
	if s == nil {
		c.mu.Unlock()
		return
	}
	c.table.Leave(s)
	var dropped []*Batch
	if drop {
		dropped = c.table.Drop(s)
	}
	delete(c.seats, n)
	delete(c.sessions, s)
	c.mu.Unlock()
	for _, b := range dropped {
		n.recycle(b)
		n.wg.Done()
	}
	c.tell()
	c.run()
}

// tell tells the servers whether they share the model, if that has changed.
func (c *arbiter) tell() {
	c.noticeOrder.Lock()
	defer c.noticeOrder.Unlock()
	c.mu.Lock()
	c.shared = len(c.seats) > 1
	var told []*session
	for n := range c.seats {
		if n.grants && n.each != c.shared {
			n.each = c.shared
			told = append(told, n)
		}
	}
	shared := c.shared
	c.mu.Unlock()
	for _, n := range told {
		n.grant(wire.GrantMessage{Each: &shared})
	}
}

// take takes a batch that has arrived. It returns false if the batch need not pass through the
// arbiter.
func (c *arbiter) take(n *session, b *Batch) bool {
	c.mu.Lock()
	s := c.seats[n]
	if s == nil || !c.shared && c.table.Idle() {
		c.mu.Unlock()
		return false
	}
	in := rounds.Batch[*Batch]{Rows: 1, Body: b}
	if b.message.Refused == nil && b.parse() == nil {
		h := &b.header
		in = rounds.Batch[*Batch]{Rows: h.Rows, Grant: h.Grant, Best: h.Best, Left: h.Left, Body: b}
	} else {
		b.header.Rows = 0 // it fails alone
	}
	n.wg.Add(1)
	c.table.Arrive(s, in, c.now())
	c.mu.Unlock()
	c.run()
	return true
}

// handleOffer handles an offer of a server, or a grant that the server gives back.
func (c *arbiter) handleOffer(n *session, m wire.OfferMessage) {
	c.mu.Lock()
	s := c.seats[n]
	if s == nil {
		c.mu.Unlock()
		return
	}
	if m.Pass != 0 {
		c.table.Pass(s, m.Pass, m.Rows, c.now())
	} else {
		c.table.Offer(s, m.Rows, time.Duration(m.DueMS*float64(time.Millisecond)), c.now())
	}
	c.mu.Unlock()
	c.run()
}

// run acts on the table until there is nothing left to do.
func (c *arbiter) run() {
	for {
		c.mu.Lock()
		now := c.now()
		grants, e, wake := c.table.Next(now)
		to := make([]*session, len(grants))
		for i, g := range grants {
			to[i] = c.sessions[g.Seat]
		}
		if wake > 0 {
			c.timer.Reset(max(0, wake-now))
		}
		c.mu.Unlock()
		for i, g := range grants { // a session that has ended sends nothing
			to[i].grant(wire.GrantMessage{Grant: g.ID, Here: g.Here, Elsewhere: g.Elsewhere, Target: g.Target})
		}
		if e != nil {
			go c.execute(e) // ends with Predict; sessions wait for their batches
		}
		if len(grants) == 0 && e == nil {
			return
		}
	}
}

// execute executes batches in one call, or one after the other if that fails: one of them may be
// to blame.
//
// The next execution is granted before this one is answered. A server hands answers to its clients
// before it reads on, so a grant behind them would be read half a millisecond later, in which
// nothing is executed.
func (c *arbiter) execute(e *rounds.Execution[*Batch]) {
	c.server.slots <- struct{}{}
	ready, alone := c.server.join(e)
	for _, b := range alone {
		answer(ready)
		b.session.predict(b)
		ready = []*Batch{b}
	}
	<-c.server.slots
	c.mu.Lock()
	c.table.Done(e, c.now())
	c.mu.Unlock()
	c.run()
	answer(ready)
}

// answer sends answers that batches of the arbiter have written.
func answer(batches []*Batch) {
	for _, b := range batches {
		n := b.session
		n.answer(b)
		n.wg.Done()
	}
}

// grant sends a message about grants.
func (n *session) grant(m wire.GrantMessage) {
	text, err := json.Marshal(m)
	if err != nil {
		return // unreachable for plain numbers
	}
	var o zmtp.Outgoing
	o.FrameString(wire.Grant)
	o.Frame(text)
	n.send(&o)
}
