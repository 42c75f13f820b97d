package zmtp

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A sender is the writing half of a connection: a bounded queue. A caller that finds it empty
// writes as much as the socket takes at once; a goroutine of its own writes the rest.
//
// The simple form, a goroutine per connection fed by a channel, cost 1.3 times the round trip of
// small messages when it was measured; so did every form that wakes another goroutine to write.
type sender struct {
	// Set once.
	conn    *Conn
	fd      syscall.RawConn // nil: cannot be tried without blocking, see stream
	try     func(fd uintptr)
	tryMore func(fd uintptr) bool

	wg sync.WaitGroup // the drain goroutine

	mu       sync.Mutex
	moved    sync.Cond // writing or err changed
	queue    []*Outgoing
	writing  *Outgoing // being written outside the lock (stream only); still the head of queue
	draining bool      // the drain goroutine runs; it alone writes
	ending   bool      // CloseWrite when the queue is empty
	err      error     // no more sending
	vec      vector
	writes   int           // system calls that wrote, for tests
	blocked  bool          // the last attempt found the socket full
	held     int           // bytes that the socket held then
	due      []func(error) // the Done of messages that have been written

	ping, pongs control
}

// A control is a command of ours that waits at most once in the queue.
type control struct {
	Outgoing
	queued bool
}

func (s *sender) init(c *Conn) {
	s.conn = c
	s.fd = rawConn(c.raw)
	s.moved.L = &s.mu
	// Bound once: a closure for each message would be an allocation for each message.
	s.try = func(fd uintptr) { s.attemptLocked(fd) }
	s.tryMore = func(fd uintptr) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.attemptLocked(fd)
		if s.blocked {
			s.held = unsent(fd)
		}
		return !s.blocked
	}
}

// Send queues o, and writes as much as the socket takes at once if nothing else waits. It never
// blocks. On nil, o belongs to the connection until it is written or the connection is closed; on
// an error it was not taken: ErrQueueFull, or why the connection ended.
func (c *Conn) Send(o *Outgoing) error { return c.out.send(o) }

// Written reports whether all of o, which was given to Send, has been handed to the socket. It
// waits for a write in progress. False is final only after Close.
func (c *Conn) Written(o *Outgoing) bool {
	s := &c.out
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writing == o && s.err == nil {
		s.moved.Wait()
	}
	return o.written
}

// Waiting reports whether a message given to Send has not been written to its end.
func (c *Conn) Waiting() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return len(c.out.queue) > 0
}

// Writes returns how many system calls have written something: one for each message, as long as
// the peer keeps up.
func (c *Conn) Writes() int {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writes
}

// Ping asks the peer for a PONG, unless the last PING still waits to be written. LastByte shows the
// answer.
func (c *Conn) Ping() {
	// Time to live 0: the protocol above defines how the peer reacts to our silence.
	c.out.command(&c.out.ping, "PING", []byte{0, 0})
}

// pong answers a PING, unless an answer still waits to be written: a PONG serves only to show the
// peer some bytes of ours. So a flood of PINGs costs no memory.
func (s *sender) pong(context []byte) { s.command(&s.pongs, "PONG", context) }

func (s *sender) command(k *control, name string, body []byte) {
	s.mu.Lock()
	skip := k.queued || s.err != nil
	if !skip {
		k.queued = true
		k.command(name, body)
		if k.Done == nil {
			k.Done = func(error) {
				s.mu.Lock()
				k.queued = false
				s.mu.Unlock()
			}
		}
	}
	s.mu.Unlock()
	if !skip && s.send(&k.Outgoing) != nil {
		k.Done(nil)
	}
}

func (s *sender) send(o *Outgoing) error {
	o.cut()
	s.mu.Lock()
	if s.err != nil {
		err := s.err
		s.mu.Unlock()
		return err
	}
	if s.ending {
		s.mu.Unlock()
		return ErrClosed
	}
	if len(s.queue) >= s.conn.limits.QueuedMessages {
		s.mu.Unlock()
		return ErrQueueFull
	}
	s.queue = append(s.queue, o)
	var err error
	var done func(error)
	if s.fd != nil && len(s.queue) == 1 && !s.draining {
		err = s.fd.Control(s.try)
		if err == nil {
			err = s.err
		}
		if len(s.due) > 0 { // o's: nothing else waited to be written
			done = s.due[0]
			s.due = s.due[:0]
		}
	}
	if len(s.queue) > 0 && err == nil && !s.draining {
		s.draining = true
		s.wg.Go(s.drain) // ends when the queue is empty or the connection fails; joined by Close
	}
	s.mu.Unlock() // from here on o may be the caller's again
	if err != nil {
		s.fail(err)
		return nil // queued, and given up by Close like all of the queue
	}
	if done != nil {
		done(nil)
	}
	return nil
}

// attemptLocked hands the socket as much of the queue as it takes in one system call.
func (s *sender) attemptLocked(fd uintptr) {
	s.blocked = false
	if s.err != nil || len(s.queue) == 0 {
		return
	}
	s.vec.fill(s.queue)
	n, err := s.vec.write(fd)
	s.vec.clear()
	switch {
	case err == nil:
		s.writes++
		s.advanceLocked(n)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		s.blocked = true
	default:
		s.err = &net.OpError{Op: "write", Net: s.conn.raw.LocalAddr().Network(), Addr: s.conn.raw.RemoteAddr(),
			Err: os.NewSyscallError("writev", err)}
	}
}

// advanceLocked takes n written bytes off the queue.
func (s *sender) advanceLocked(n int) {
	done := 0
	for _, o := range s.queue {
		if n = o.advance(n); n < 0 {
			break
		}
		o.written = true
		if o.Done != nil {
			s.due = append(s.due, o.Done)
		}
		done++
	}
	s.queue = append(s.queue[:0], s.queue[done:]...)
}

// advance takes n written bytes off the message and returns the rest of n, or -1 when the message
// is not finished.
func (o *Outgoing) advance(n int) int {
	for o.next < len(o.segments) {
		rest := len(o.bytes(o.segments[o.next])) - o.offset
		if n < rest {
			o.offset += n
			return -1
		}
		n -= rest
		o.next, o.offset = o.next+1, 0
	}
	return n
}

// drain writes until the queue is empty.
func (s *sender) drain() {
	var due []func(error)
	for {
		s.mu.Lock()
		due = append(due[:0], s.due...)
		s.due = s.due[:0]
		over := len(s.queue) == 0 || s.err != nil
		s.draining = !over
		end := over && s.ending && s.err == nil
		s.mu.Unlock()
		for _, done := range due {
			done(nil)
		}
		if end {
			s.closeWrite()
		}
		if over {
			return
		}
		err := s.flush()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ErrStalled
		}
		if err != nil {
			s.fail(err)
		}
	}
}

// extend moves the deadline. It is for the next bytes, not for a message: a peer may read slowly,
// but one that takes nothing is stuck.
func (s *sender) extend() error { return s.conn.raw.SetWriteDeadline(time.Now().Add(s.conn.timeout)) }

// flush waits until the socket has taken something.
func (s *sender) flush() error {
	if err := s.extend(); err != nil {
		return err
	}
	if s.fd == nil {
		return s.stream()
	}
	for {
		err := s.fd.Write(s.tryMore)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || !s.taken() {
			return err
		}
		if err := s.extend(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// taken reports whether the peer has taken anything since the socket was last found full. Writes
// need not show it: a full socket takes more only when a third of its bytes have left, and that may
// be megabytes.
func (s *sender) taken() bool {
	left := 0
	// A closed socket reports its own error.
	_ = s.fd.Control(func(fd uintptr) { left = unsent(fd) })
	s.mu.Lock()
	defer s.mu.Unlock()
	return left < s.held
}

// stream writes the head of the queue with blocking calls, for connections that are not sockets of
// the system.
func (s *sender) stream() error {
	s.mu.Lock()
	o := s.queue[0]
	s.writing = o
	s.mu.Unlock()
	bufs := make(net.Buffers, 0, len(o.segments))
	for _, g := range o.segments {
		bufs = append(bufs, o.bytes(g))
	}
	var err error
	for {
		var n int64
		if n, err = bufs.WriteTo(s.conn.raw); n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err = s.extend(); err != nil {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = nil
	s.writes++
	s.moved.Broadcast()
	if err == nil {
		s.advanceLocked(o.size)
	}
	return err
}

// fail records the first reason and closes the socket, which wakes Receive. Close does the rest.
func (s *sender) fail(err error) {
	s.close(err)
	s.conn.socket.Close()
}

func (s *sender) close(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.moved.Broadcast()
}

// reason returns why sending failed, if it failed first, or else err: otherwise the reader only saw
// the socket being closed under it.
func (s *sender) reason(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	return err
}

// finish half-closes the connection now or when the queue is empty.
func (s *sender) finish() {
	s.mu.Lock()
	now := !s.ending && len(s.queue) == 0 && !s.draining && s.err == nil
	s.ending = true
	if now && s.fd == nil { // TLS has to write its closing message, which may wait
		now, s.draining = false, true
		s.wg.Go(s.drain) // ends at once after that; joined by Close
	}
	s.mu.Unlock()
	if now {
		s.closeWrite()
	}
}

func (s *sender) closeWrite() {
	if h, ok := s.conn.raw.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // the reader sees any error of the socket
	}
}

// join waits for the drain goroutine and gives up the rest of the queue. s.err has been set.
func (s *sender) join() {
	s.wg.Wait()
	s.mu.Lock()
	left, err := s.queue, s.err
	s.queue = nil
	s.mu.Unlock()
	for _, o := range left {
		if o.Done != nil {
			o.Done(err)
		}
	}
}
