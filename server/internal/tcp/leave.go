package tcp

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/metrics"
)

// How sessions end. Whichever side ends a session, the client learns why and gets its outstanding
// answers: the session discards its input, its answers leave, and then the transport is closed in a
// way that does not lose them.

// leaveFor stops reading: the session ends when the requests so far have been answered.
func (s *session) leaveFor(why metrics.Closed) {
	if s.phase == reading {
		s.enter(leaving)
		s.reason, s.closing = why, new(closing)
		s.loop.watchClocks(s)
	}
}

// refuse answers a message that will never be complete, and stops reading.
func (s *session) refuse(why metrics.Closed, err error) {
	c := s.appendCall(nil)
	c.err = err
	s.finish(c)
	s.leaveFor(why)
	s.dropHalf()
}

// endForShutdown ends the session because the server shuts down.
func (s *session) endForShutdown() {
	if s.phase >= ending {
		return
	}
	if s.halfReceived() {
		s.refuse(metrics.ClosedDraining,
			fmt.Errorf("%w: this server is shutting down after receiving %d bytes of the message: send the message again later, or to another server",
				scheduler.ErrDraining, s.clock.Bytes))
	}
	s.leaveFor(metrics.ClosedDraining)
	s.hurried = true
	s.leave()
}

// expire ends the session because a message takes too long to arrive.
func (s *session) expire() {
	err := s.clock.Error("tcp", s.loop.now, s.loop.settings.MessageTimeout)
	s.loop.door.log.Info("closing a connection: a message did not arrive in time", "peer", s.transport.Peer(), "error", err)
	s.refuse(metrics.ClosedMessageTimeout, err)
	s.hurried = true // it was slow enough
}

// halfReceived reports whether a message has begun that may still become complete.
func (s *session) halfReceived() bool {
	return s.phase == reading && s.receiver != nil && s.receiver.InMessage()
}

// leave ends a session that is leaving when its answers have left. First only the server's
// direction ends, so that the client reads the answers and then the end. The input is read for a
// while longer (lingers): unread input at close makes the kernel reset the connection, and the
// client then loses the last answers, or never reads them because its sending fails.
func (s *session) leave() {
	if s.head != nil || s.outbound.first != nil {
		return
	}
	switch s.phase {
	case hungUp:
		s.close() // no more input will come
	case leaving:
		s.enter(lingering)
		s.shutAt = s.loop.now
		s.transport.CloseWrite()
	}
}

// lingers reports whether to keep reading after the client's last answer: until the client has been
// quiet for a second, but not before a message of known length, such as one that is too large, has
// arrived completely. A client that never stops gets as long as a message of the discarded size may
// take, or a second if hurried is set.
func (s *session) lingers() bool {
	const quiet, longest = time.Second, 10 * time.Second
	since := s.loop.now.Sub(s.shutAt)
	switch {
	case s.hurried:
		return since < quiet
	case s.discarded < s.rest:
		return since < setting.Allowance(longest, s.discarded)
	default:
		return since < setting.Allowance(longest, s.rest) && min(since, s.loop.now.Sub(s.lastInput)) < quiet
	}
}

// due reports whether a peer that ends its direction now is still owed an answer.
func (s *session) due() bool {
	return s.phase < lingering && (s.head != nil || s.outbound.first != nil || s.halfReceived())
}

// hangUp is called when the peer, which is owed answers, has ended its direction. A client that
// waits for its answers, as nc does, looks the same as a device that has closed the connection and
// wants no answer, and as a program that has exited. All of their requests are executed, unless
// cancel_on_close is set; then the session finds out (see probe).
func (s *session) hangUp() {
	defer s.rescue()
	if s.halfReceived() {
		s.refuse(metrics.ClosedByClient,
			fault.Malformed("the client closed its sending side inside a message, after %d bytes of it", s.clock.Bytes))
	}
	s.leaveFor(metrics.ClosedByClient)
	s.enter(hungUp)
	s.hungUpAt = s.loop.now
	s.queue()
}

// probe finds out whether a client that has ended its direction still reads, if requests are to be
// canceled otherwise. If it does not, its kernel answers the byte with a reset, and the session
// ends with all of its queued requests. The first byte of the next answer can be sent at any time,
// since all messages begin alike. Answers that complete soon are written whole.
func (s *session) probe() {
	const (
		begin = 6 // the first byte of a message
		soon  = 100 * time.Millisecond
	)
	if !s.loop.settings.CancelOnClose || s.phase != hungUp || s.probed || s.head == nil ||
		s.head.phase == answered || s.outbound.first != nil || s.loop.now.Sub(s.hungUpAt) < soon {
		return
	}
	if n, err := s.transport.Write([][]byte{{begin}}); err != nil {
		s.close()
	} else {
		s.probed = n == 1
	}
}

// end closes the session for a reason other than the client's request.
func (s *session) end(why metrics.Closed, text string, args ...any) {
	s.reason = why
	s.loop.door.log.Info("closing a connection: "+text, append([]any{"peer", s.transport.Peer()}, args...)...)
	s.close()
}

// close closes the transport, once.
func (s *session) close() {
	if s.phase < ending {
		s.enter(ending)
		s.transport.Close()
	}
}

// closed is called by the transport, once, when it is closed. The client's queued requests are
// canceled, unless the client has ended its direction first: it may have closed a connection on
// which it expects no answer.
func (s *session) closed() {
	s.enter(gone)
	s.dropHalf()
	for c := s.head; c != nil; {
		next := c.next
		switch {
		case c.phase == fetching: // see resumeFetched
		case c.phase == held && s.abandoned():
			s.execute(c)
		case c.phase != inFlight:
			s.loop.freeCall(c)
		case c.parked != nil: // abandoned or not: it executes nothing
			c.parked.Cancel()
		case s.abandoned():
		case c.feedback != nil:
			c.feedback.Cancel()
		default:
			s.loop.door.gate.Cancel(&c.gate)
		}
		c = next
	}
	s.head, s.tail, s.firstHeld, s.held = nil, nil, nil, 0
	s.stream.End()
	if s.regions {
		s.loop.door.regions.Disconnected(s)
	}
	s.outbound.release(s)
	s.loop.remove(s)
}

// abandoned reports whether the client has ended its direction, so that its requests are executed
// even if the connection is closed.
func (s *session) abandoned() bool {
	return !s.hungUpAt.IsZero() && !s.loop.settings.CancelOnClose
}

// execute schedules a call of a client that has closed the connection: its answer needs no room.
func (s *session) execute(c *call) {
	c.enter(inFlight)
	s.inFlight++
	s.loop.pending = append(s.loop.pending, c)
}
