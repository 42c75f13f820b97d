package tcp

import (
	"slices"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/trace"
	"github.com/shivad/shivad/shiva"
)

// A call is one request of a connection, and its place in the line of answers.
//
// It belongs to its loop, except between Submit and Complete, when the field gate belongs to the
// gate. It is freed when its answer has been written, or, if its client has disconnected by then,
// when it is complete.
type call struct {
	gate      gate.Call // the gate's side of it
	session   *session
	message   *shiva.Message // the request; inputs refer to its memory; nil when no longer needed
	feedback  gate.Feedback  // used instead of gate for feedback
	namespace string         // of the request; empty if it could not be decoded
	next      *call          // the next in the line of answers

	question question
	arrived  time.Time

	trace       *trace.Trace // nil: not traced
	use         access.Use
	bytes       int64          // of the message
	control     []byte         // the answer's metadata, if no model answered
	err         error          // the refusal before the scheduler, if any, or the error of feedback
	outboxBytes int            // in the session's outbox: reserved, then the answer's size
	shared      *sharedTensors // nil: no tensor is in shared memory
	phase       callPhase
}

// Complete posts the call to its loop, where everything else about a session happens. Any goroutine
// may call it.
func (c *call) Complete(*gate.Call) {
	if c.hasSharedOutputs() {
		c.session.loop.door.copies.Go(c.put)
		return
	}
	c.session.loop.post(c)
}

// completeFeedback is Complete for feedback.
func (c *call) completeFeedback(reply []byte, err error) {
	c.control, c.err = reply, err
	c.session.loop.post(c)
}

// failure returns the error with which the call is answered, as "!error"; nil: none.
func (c *call) failure() error {
	if c.err != nil {
		return c.err
	}
	return c.gate.Err
}

// A refusal is the part of an error that the client is told. The error itself may quote any amount
// of the request.
type refusal struct {
	text      string
	condition error // fault.Bare
	unshared  bool  // regions.IsUnusable
}

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return r.condition }

// count adds the call's outcome to the metrics.
func (c *call) count(l *loop) {
	model := c.gate.Counted()
	if model == nil {
		model = l.door.gate.Unrouted()
	}
	if c.gate.Timing.BatchRows > 0 {
		l.tally.Waited(model, c.gate.Timing.Queue, c.gate.Timing.Exec)
	}
	outcome := gate.Outcome(c.failure(), c.gate.Choice)
	switch s := c.session; {
	case s.phase < ending:
	case !s.abandoned():
		outcome = metrics.Canceled
	case outcome == metrics.OK || outcome == metrics.Default:
		outcome = metrics.Undelivered
	}
	l.tally.Answered(model, outcome, l.now.Sub(c.arrived))
	if c.trace != nil {
		c.trace.End(c.namespace, outcome.String(), c.failure())
		c.trace = nil
	}
}

// newCall takes a call from the loop's free list.
func (l *loop) newCall(s *session, m *shiva.Message) *call {
	var c *call
	if n := len(l.free); n > 0 {
		c = l.free[n-1]
		l.free = l.free[:n-1]
		l.unused = min(l.unused, n-1)
	} else {
		c = new(call)
	}
	c.enter(opening)
	c.session, c.message, c.arrived = s, m, l.now
	if m != nil {
		c.namespace = m.Namespace
	}
	l.tally.Began()
	return c
}

// dropQuestion releases a request whose answer is known, except for its id.
func (l *loop) dropQuestion(c *call) {
	id := slices.Clone(c.question.id)
	l.recycle(c)
	c.question.id = id
}

// recycle releases the request of a call for reuse.
func (l *loop) recycle(c *call) {
	c.question.reset()
	if c.message != nil {
		l.spares.Recycle(c.message)
		c.message = nil
	}
}

// freeCall counts the call and releases the outputs, the request and the call, in this order.
func (l *loop) freeCall(c *call) {
	const keep = 4096
	c.enter(free)
	c.count(l)
	c.gate.Close()
	if c.feedback != nil {
		c.feedback.Close()
		c.feedback = nil
	}
	l.recycle(c)
	c.use.End()
	c.session, c.namespace, c.next = nil, "", nil
	c.control, c.err, c.outboxBytes = nil, nil, 0
	c.shared.release()
	c.shared = nil
	if len(l.free) < keep {
		l.free = append(l.free, c)
	}
}
