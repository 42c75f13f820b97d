package containertest

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeBytes is the capacity of one direction of a Pipe, about that of a socket pair.
const pipeBytes = 256 << 10

// Pipe returns the two ends of a connection in memory. Unlike net.Pipe it is buffered, as sockets
// are, since both sides of a ZMTP handshake write before they read. Deadlines and half-closing
// work, and inside a testing/synctest bubble it runs on the bubble's clock.
func Pipe() (a, b net.Conn) {
	ab, ba := newStream(), newStream()
	return &end{in: ba, out: ab, name: "a"}, &end{in: ab, out: ba, name: "b"}
}

// A stream is one direction.
type stream struct {
	mu      sync.Mutex
	changed sync.Cond
	data    []byte
	wclosed bool // closed for writing
	rclosed bool // closed for reading
	rexpiry expiry
	wexpiry expiry
}

// An expiry is a deadline that wakes its waiters.
type expiry struct {
	timer *time.Timer
	at    time.Time
}

func (e *expiry) passed() bool { return !e.at.IsZero() && !time.Now().Before(e.at) }

func newStream() *stream {
	s := &stream{}
	s.changed.L = &s.mu
	return s
}

func (s *stream) setDeadline(e *expiry, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.at = t
	if !t.IsZero() {
		e.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.changed.Broadcast()
		})
	}
	s.changed.Broadcast()
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.rclosed:
			return 0, net.ErrClosed
		case s.rexpiry.passed():
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0:
			n := copy(p, s.data)
			s.data = append(s.data[:0], s.data[n:]...)
			s.changed.Broadcast()
			return n, nil
		case s.wclosed:
			return 0, io.EOF
		}
		s.changed.Wait()
	}
}

func (s *stream) write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.wclosed:
			return n, net.ErrClosed
		case s.wexpiry.passed():
			return n, os.ErrDeadlineExceeded
		case s.rclosed:
			return n, io.ErrClosedPipe
		}
		take := min(len(p), pipeBytes-len(s.data))
		if take > 0 {
			s.data = append(s.data, p[:take]...)
			n, p = n+take, p[take:]
			s.changed.Broadcast()
		}
		if len(p) == 0 {
			return n, nil
		}
		s.changed.Wait()
	}
}

// close ends the direction for its reader or its writer.
func (s *stream) close(reader bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &s.wexpiry
	if reader {
		s.rclosed = true
		e = &s.rexpiry
	} else {
		s.wclosed = true
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	s.changed.Broadcast()
}

// An end is one of the two connections.
type end struct {
	in, out *stream
	name    string
}

func (e *end) Read(p []byte) (int, error)  { return e.in.read(p) }
func (e *end) Write(p []byte) (int, error) { return e.out.write(p) }

func (e *end) Close() error {
	e.out.close(false)
	e.in.close(true)
	return nil
}

func (e *end) CloseWrite() error {
	e.out.close(false)
	return nil
}

func (e *end) SetDeadline(t time.Time) error {
	e.in.setDeadline(&e.in.rexpiry, t)
	e.out.setDeadline(&e.out.wexpiry, t)
	return nil
}

func (e *end) SetReadDeadline(t time.Time) error {
	e.in.setDeadline(&e.in.rexpiry, t)
	return nil
}

func (e *end) SetWriteDeadline(t time.Time) error {
	e.out.setDeadline(&e.out.wexpiry, t)
	return nil
}

func (e *end) LocalAddr() net.Addr  { return pipeAddr(e.name) }
func (e *end) RemoteAddr() net.Addr { return pipeAddr("pipe") }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }
