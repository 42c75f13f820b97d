package tcp

import (
	"bytes"
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
	*work     // nil: it is free, or parked
	session   *session
	message   *shiva.Message // the request; inputs refer to its memory; nil when no longer needed
	feedback  gate.Feedback  // used instead of gate for feedback
	namespace string         // of the request; empty if it could not be decoded
	next      *call          // the next in the line of answers
	arrived   time.Time

	parked   *gate.Poll // waits for the newest answer of a stream; nil: it is no such call
	metadata []byte     // of its message, as a copy, if the answer repeats some of it

	trace       *trace.Trace // nil: not traced
	use         access.Use
	bytes       int64          // of the message
	control     []byte         // the answer's metadata, if no model answered
	err         error          // the refusal before the scheduler, if any, or the error of feedback
	outboxBytes int            // in the session's outbox: reserved, then the answer's size
	shared      *sharedTensors // nil: no tensor is in shared memory
	phase       callPhase
	timing      bool // of a parked call: the answer says where the time was spent
}

// work is what a call needs to open its request and to write its answer, and not while it is
// parked.
type work struct {
	gate     gate.Call // the gate's side of it
	question question
}

// Complete posts the call to its loop, where everything else about a session happens. Any goroutine
// may call it.
func (c *call) Complete(*gate.Call) {
	if c.parked == nil && c.hasSharedOutputs() {
		c.session.loop.door.copies.Go(c.put)
		return
	}
	c.session.loop.post(c)
}

// completeFeedback is Complete for feedback.
func (c *call) completeFeedback(reply gate.Learned, err error) {
	if c.err = err; err == nil {
		c.control = reply.JSON()
	}
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

// newCall takes a call from those that are free.
func (l *loop) newCall(s *session, m *shiva.Message) *call {
	c := l.calls.take()
	c.work = l.works.take()
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
	id := slices.Clone(c.question.ID)
	l.recycle(c)
	c.question.ID = id
}

// recycle releases the request of a call for reuse.
func (l *loop) recycle(c *call) {
	c.question.reset()
	if c.message != nil {
		l.spares.Recycle(c.message)
		c.message = nil
	}
}

// park submits a question that may wait for the newest answer of a stream. Thousands may, for
// seconds each: while they do, they have a place in the line and little else.
func (l *loop) park(c *call, q *gate.Poll) {
	if c.question.ID != nil || c.question.own != nil {
		c.metadata = bytes.Clone(c.question.Metadata)
	}
	c.parked, c.timing = q, c.question.Timing
	c.gate.Close()
	l.recycle(c)
	l.works.give(c.work)
	c.work = nil
	q.Ask()
}

// resume continues with a parked call, now that it has its answer.
func (l *loop) resume(c *call) {
	c.work = l.works.take()
	_ = c.question.parse(c.metadata, ofLatest) // without an error, as before
	c.question.Timing = c.timing               // which a redirect may have set
	c.parked.Attach(&c.gate)
	c.parked = nil
}

// freeCall counts the call and releases the outputs, the request and the call, in this order.
func (l *loop) freeCall(c *call) {
	c.enter(free)
	c.count(l)
	c.gate.Close()
	if c.feedback != nil {
		c.feedback.Close()
		c.feedback = nil
	}
	l.recycle(c)
	l.works.give(c.work)
	c.use.End()
	c.work, c.session, c.namespace, c.next, c.metadata = nil, nil, "", nil, nil
	c.control, c.err, c.outboxBytes = nil, nil, 0
	c.shared.release()
	c.shared = nil
	l.calls.give(c)
}

// A stock has free objects for reuse. The zero stock is empty.
type stock[T any] struct {
	free   []*T
	unused int // free ones that were not needed since the last trim
}

// take returns a free object, or a new one.
func (s *stock[T]) take() *T {
	n := len(s.free)
	if n == 0 {
		return new(T)
	}
	v := s.free[n-1]
	s.free = s.free[:n-1]
	s.unused = min(s.unused, n-1)
	return v
}

// give takes an object back.
func (s *stock[T]) give(v *T) {
	const keep = 4096
	if len(s.free) < keep {
		s.free = append(s.free, v)
	}
}

// few is how many free objects a stock keeps even if it does not need them.
const few = 64

// trim drops an eighth of the free objects that were not needed since the last tick, down to a few.
// A stall of the machine leaves thousands of them, which are megabytes.
func (s *stock[T]) trim() {
	n := len(s.free)
	drop := max(0, s.unused-few+7) / 8
	clear(s.free[n-drop:])
	s.free = s.free[:n-drop]
	s.unused = len(s.free)
}
