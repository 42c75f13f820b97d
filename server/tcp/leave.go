package tcp

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/metrics"
)

// This file is how sessions end. Whoever ends one, the client is told why and gets the answers
// that it is due: a session turns deaf, its answers leave, and then its socket is closed in a
// way that does not lose them.

// leaveFor stops reading: the session ends when the answers to what it asked so far have left.
func (s *session) leaveFor(why metrics.Closed) {
	if !s.deaf {
		s.deaf, s.why = true, why
	}
}

// refuse answers a message that will not come to its end, and stops reading.
func (s *session) refuse(why metrics.Closed, err error) {
	c := s.line(nil)
	c.err = err
	s.finish(c)
	s.leaveFor(why)
	s.dropHalf()
}

// goodbye ends the session because the server goes.
func (s *session) goodbye() {
	if s.halfReceived() {
		s.refuse(metrics.ClosedDraining, fmt.Errorf("%w: this server is shutting down, and %d bytes of the message had come; send it to another one or again later", scheduler.ErrDraining, s.arrived))
	}
	s.leaveFor(metrics.ClosedDraining)
	s.hurried = true
	s.leave()
}

// expire ends the session because a message does not arrive.
func (s *session) expire() {
	limit, took := s.loop.settings.MessageTimeout, s.loop.now.Sub(s.begun).Round(time.Millisecond)
	s.loop.door.log.Info("closing a connection: its message does not arrive", "peer", s.socket.Peer(), "bytes", s.arrived, "for", took, "limit", limit)
	s.refuse(metrics.ClosedMessageTimeout, fmt.Errorf("%w: %d bytes of a message came within %v (tcp.message_timeout = %v, and a second for each 16 KiB)",
		scheduler.ErrDeadlineExceeded, s.arrived, took, limit))
	s.hurried = true // it was slow enough
}

// halfReceived reports whether a message has begun that may still come to its end.
func (s *session) halfReceived() bool {
	return !s.deaf && s.decoder != nil && s.decoder.InMessage()
}

// leave ends the session when its answers have left. First only our direction ends, so that the
// client reads the answers and then the end. Its input is read on for a while (lingers): unread
// input at close makes the kernel reset the connection, and the client loses the last answers,
// or never comes to read them, since its sending fails.
func (s *session) leave() {
	switch {
	case s.head != nil || s.unsent.first != nil || !s.shut.IsZero():
	case !s.hungUp.IsZero():
		s.close() // no more input can come
	default:
		s.shut = s.loop.now
		s.socket.CloseWrite()
	}
}

// lingers reports whether to read on for a client that has been sent its last answer: until it
// has been quiet for a second, but not before all of a message is there whose end was known,
// such as one that is too large. A client that never stops has as long as a message of what it
// has sent since may take, or a second if there is a hurry.
func (s *session) lingers() bool {
	const quiet, longest = time.Second, 10 * time.Second
	since := s.loop.now.Sub(s.shut)
	switch {
	case s.hurried:
		return since < quiet
	case s.discarded < s.rest:
		return since < arrival(longest, s.discarded)
	default:
		return since < arrival(longest, s.rest) && min(since, s.loop.now.Sub(s.lastInput)) < quiet
	}
}

// hangUp takes note that the peer has ended its direction, or the connection if err is another
// error than io.EOF or none. Of the first kind the end of a program cannot be told from a
// client that says "that is all" and waits for its answers, as nc does; so the session goes on
// while answers are due, and finds out (see probe).
func (s *session) hangUp(err error) {
	defer s.rescue()
	due := s.head != nil || s.unsent.first != nil || s.halfReceived()
	if !due || !errors.Is(err, io.EOF) || s.ending || !s.shut.IsZero() {
		s.closed()
		return
	}
	socket, err := s.socket.Detach()
	if err != nil {
		s.loop.door.log.Debug("a client that has ended its direction gets no more answers", "peer", s.socket.Peer(), "error", err)
		s.closed()
		return
	}
	s.socket, s.hungUp = socket, s.loop.now
	if s.halfReceived() {
		s.refuse(metrics.ClosedByClient, fmt.Errorf("%w: the client ended its direction inside a message, after %d bytes of it", gate.ErrProtocol, s.arrived))
	}
	s.leaveFor(metrics.ClosedByClient)
	s.queue()
}

// probe finds out whether a client that has ended its direction is still there: if it is not,
// its kernel refuses whatever is sent, and the session is lost, with all that it has waiting in
// queues. What can be sent at any time is the first byte of the next answer, for all messages
// begin alike. Answers that are known soon are written whole.
func (s *session) probe() {
	const (
		begin = 6 // the first byte of a message
		soon  = 100 * time.Millisecond
	)
	if s.hungUp.IsZero() || s.probed || s.head == nil || s.head.answered || s.unsent.first != nil || s.loop.now.Sub(s.hungUp) < soon {
		return
	}
	n, err := s.socket.Write([][]byte{{begin}})
	if err != nil {
		s.close()
		return
	}
	s.probed = n == 1
}

// end closes the session for a reason that is not the client's wish.
func (s *session) end(why metrics.Closed, text string, args ...any) {
	s.why = why
	s.loop.door.log.Info("closing a connection: "+text, append([]any{"peer", s.socket.Peer()}, args...)...)
	s.close()
}

// close closes the socket, once.
func (s *session) close() {
	if !s.ending {
		s.ending = true
		s.socket.Close()
	}
}

// closed is the socket's last word. Queued requests leave the scheduler with their client.
func (s *session) closed() {
	s.gone = true
	s.loop.door.metrics.Closed(s.why)
	s.dropHalf()
	for c := s.head; c != nil; {
		next := c.next
		switch {
		case !c.inFlight:
			s.loop.freeCall(c)
		case c.feedback != nil:
			c.feedback.Cancel()
		default:
			s.loop.door.gate.Cancel(&c.Call)
		}
		c = next
	}
	s.head, s.tail = nil, nil
	s.unsent.release(s)
	s.loop.remove(s)
}
