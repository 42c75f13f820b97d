package main

import (
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/rounds"
)

// A session is a connection between a server and a container.
type session struct {
	*server
	container *container
	link      *link
	replica   *scheduler.Replica
	seat      *rounds.Seat[work]
	served    bool // on the server's side
	open      bool // on the container's side
	each      bool // the server was told that other servers share the container

	to, from int64 // when the latest message arrives at the container, and at the server
}

// work is a batch with the session on which it came.
type work struct {
	*scheduler.Batch
	session *session
}

// A kind is the kind of a message.
type kind uint8

const (
	offers kind = iota
	passes
	batches
	grants
	results
	others // registration, sharing, draining
	kinds
)

var kindNames = [kinds]string{"offers", "passes", "batches", "grants", "results", "others"}

// A message is on its way from a server to a container, or back.
type message struct {
	event
	kind    kind
	session *session
	id      uint64 // of a grant
	rows    int    // offers, batches; results: of the execution; grants: here
	left    int    // batches; grants: elsewhere
	best    int    // batches; grants: target
	after   time.Duration
	batch   *scheduler.Batch
	call    func() // others
}

// message returns a new message.
func (n *session) message(k kind) *message {
	w := n.world
	var m *message
	if last := len(w.spare) - 1; last >= 0 {
		m, w.spare = w.spare[last], w.spare[:last]
	} else {
		m = new(message)
	}
	*m = message{event: event{index: -1}, kind: k, session: n}
	m.event.message = m
	return m
}

// carry delivers a message after its delay, in order.
func (n *session) carry(last *int64, m *message) {
	n.tally.message(n.world, m.kind)
	*last = max(*last, n.clock.now+int64(n.way()))
	n.clock.set(&m.event, *last)
}

// arrive delivers a message to its receiver.
func (m *message) arrive() {
	n := m.session
	switch {
	case m.kind == others:
		m.call()
	case m.kind <= batches && n.open && n.container.state <= draining:
		n.taken(m)
	case m.kind > batches && n.served:
		switch m.kind {
		case grants:
			n.replica.Grant(m.id, m.rows, m.left, m.best)
		case results:
			if m.id != 0 {
				m.batch.Executed(m.rows, m.after)
			}
			if err := m.batch.Complete(n.outputs[m.batch.Rows], nil); err != nil {
				n.fail(err)
			}
		}
	}
	n.spare = append(n.spare, m)
}

// taken handles a message in the container.
func (n *session) taken(m *message) {
	c, now := n.container, n.clock.since()
	switch m.kind {
	case offers:
		c.table.Offer(n.seat, m.rows, m.after, now)
	case passes:
		c.table.Pass(n.seat, m.id, now)
	case batches:
		c.table.Arrive(n.seat, rounds.Batch[work]{Rows: m.rows, Grant: m.id, Best: m.best, Left: m.left, Body: work{m.batch, n}}, now)
	}
	c.run()
}

// Send sends a batch to the container.
func (n *session) Send(b *scheduler.Batch) error {
	m := n.message(batches)
	m.id, m.rows, m.left, m.best, m.batch = b.Turn.Grant, b.Rows, b.Turn.Left, b.Turn.Best, b
	n.carry(&n.to, m)
	return nil
}

func (n *session) offer(o scheduler.Offer) {
	m := n.message(offers)
	if o.Grant != 0 {
		m.kind = passes
	}
	m.id, m.rows, m.after = o.Grant, o.Rows, o.Due
	n.carry(&n.to, m)
}

// later calls f on the other side of the session, in order with the messages.
func (n *session) later(last *int64, f func()) {
	m := n.message(others)
	m.call = f
	n.carry(last, m)
}

// share tells the server whether other servers share the container.
func (n *session) share(on bool) {
	n.each = on
	n.later(&n.from, func() {
		if n.served {
			n.replica.Share(on)
		}
	})
}

// part ends a session that its container leaves: the server sends nothing more, and says goodbye
// when it has all answers.
func (n *session) part() {
	n.later(&n.from, func() {
		if !n.served {
			return
		}
		n.replica.Drain(func() {
			n.forget(n)
			n.later(&n.to, n.lost)
		})
	})
}

// lost ends the session on the container's side.
func (n *session) lost() {
	if n.open {
		n.open = false
		n.container.leave(n)
	}
}
