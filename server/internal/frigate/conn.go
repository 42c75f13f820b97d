package frigate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/unfinished"
)

// mostFrames bounds the frames of a received message. Detectors send at most three; a message of
// more is still read, so that its sender is told.
const mostFrames = 16

// A conn is a detector's connection.
type conn struct {
	*listen.Conn
	door *Door

	// Set once.
	ctx    context.Context // ends when the detector disconnects, or the socket is closed
	cancel context.CancelFunc
	source uint64     // for fairness
	client string     // gate.ClientOf
	zmtp   *zmtp.Conn // nil until the handshake is done

	shaking bool // the handshake is not done; guarded by the door's mutex

	// Owned by the goroutine that reads.
	due    time.Time // the deadline of reading
	half   unfinished.Message
	sender access.Credentials // as credentials, of which each goroutine needs its own

	// Owned by the goroutine that answers.
	credentials access.Credentials
	file        string // the model file that the detector asked for; "": none yet
	out         zmtp.Outgoing
	sent        chan error // receives the result of writing out
}

// serve makes the handshake and answers until the connection ends.
func (c *conn) serve() {
	defer c.Conn.Close()
	if err := c.shake(); err != nil {
		c.ended(metrics.ClosedHandshake, err)
		return
	}
	c.sent = make(chan error, 1)
	c.out.Done = func(err error) { c.sent <- err }
	messages := make(chan *zmtp.Message)
	go c.read(messages) // ends with the connection, and is waited for below
	c.converse(messages)
	c.zmtp.Close()
	for m := range messages {
		m.Release()
	}
	c.door.mu.Lock()
	delete(c.door.conns, c)
	c.door.mu.Unlock()
}

// shake makes the handshake of ZMTP.
func (c *conn) shake() error {
	d, s := c.door, c.door.settings.Load()
	d.mu.Lock()
	c.shaking = true
	d.conns[c] = struct{}{}
	if d.closing.Err() != nil { // Shutdown may have cut the other connections already
		c.cut()
	}
	d.mu.Unlock()
	z, err := zmtp.Server(c, zmtp.Config{
		Client: zmtp.Req, Pool: d.pool, Grant: c.grant, HandshakeTimeout: s.MessageTimeout,
		WriteTimeout: s.StallTimeout,
		Limits:       zmtp.Limits{MessageBytes: s.Limits.MessageBytes, Frames: mostFrames, QueuedMessages: 4},
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	c.shaking = false
	if err != nil {
		delete(d.conns, c)
		return err
	}
	c.zmtp = z
	return nil
}

// Close closes the socket. Package zmtp also calls it when a client does not read. The connection
// counts as open until serve returns, since the reason for its end may not be recorded yet.
func (c *conn) Close() error {
	c.cancel()
	return c.Conn.Conn.Close()
}

// cut ends the connection at once, because the door is closing.
func (c *conn) cut() {
	c.Because(metrics.ClosedDraining)
	_ = c.Close()
}

// logEnd logs why the server ended a connection.
func (c *conn) logEnd(err error) {
	c.door.log.Info("a detector's connection was closed", "peer", c.RemoteAddr().String(), "error", err)
}

// read receives messages until the connection ends, and records why it ended.
func (c *conn) read(messages chan<- *zmtp.Message) {
	defer close(messages)
	defer c.cancel()
	defer c.half.Finish()
	for {
		m := new(zmtp.Message)
		c.zmtp.SetMessageLimits(c.door.settings.Load().Limits.MessageBytes, mostFrames)
		if err := c.zmtp.Receive(m); err != nil {
			c.ended(metrics.ClosedError, err)
			return
		}
		select {
		case messages <- m:
		case <-c.ctx.Done(): // the next Receive returns the reason
			m.Release()
		}
		c.half.Finish() // from here on the request's own charge counts
	}
}

// grant asks for the memory of a message that is arriving, see [zmtp.Config]. A detector has no
// token, only a certificate: one that may not enter gets what its header takes, so that it is
// answered, and no more.
func (c *conn) grant(held, whole int64) error {
	const forHeader = 4 << 10
	who := c.door.identities.Who(&c.sender)
	err := who.Enter()
	if !c.half.Begun() {
		c.door.room.Begin(&c.half,
			unfinished.Sender{Payers: who.Payers(c.Account()), Stranger: err != nil, InFlight: true, Reader: c})
	}
	if err == nil || held <= forHeader {
		err = c.half.Take(held, whole)
	}
	if err != nil {
		c.half.Finish()
	}
	return err
}

// EndMessage ends the connection, since nothing else wakes a reader that waits for bytes. See
// [unfinished.Reader].
func (c *conn) EndMessage(error) {
	c.Because(metrics.ClosedMemory)
	_ = c.Close()
}

// ended records why nothing more can be received: why, unless err gives a more precise reason.
func (c *conn) ended(why metrics.Closed, err error) {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		c.Because(metrics.ClosedByClient)
		return
	case errors.Is(err, zmtp.ErrClosed), errors.Is(err, net.ErrClosed): // by the server itself
		return
	case why == metrics.ClosedHandshake:
	case errors.Is(err, os.ErrDeadlineExceeded):
		why = metrics.ClosedMessageTimeout
	case errors.Is(err, zmtp.ErrStalled):
		why = metrics.ClosedStalled
	case errors.Is(err, zmtp.ErrProtocol), errors.Is(err, zmtp.ErrTooLarge):
		why = metrics.ClosedProtocol
	}
	c.Because(why)
	c.logEnd(err)
}

// Read sets the deadline by which a message that has begun must have arrived. Between messages it
// pauses for a client most of whose requests were refused.
func (c *conn) Read(p []byte) (int, error) {
	if c.zmtp != nil {
		since, bytes := c.zmtp.Receiving()
		if since.IsZero() {
			c.Rest(c.Pause(1), c.ctx.Done())
		}
		c.half.Arrived(bytes)
		due := listen.Clock{Began: since, Bytes: bytes}.Due(c.door.settings.Load().MessageTimeout)
		if due != c.due {
			c.due = due
			_ = c.Conn.SetReadDeadline(due)
		}
	}
	return c.Conn.Read(p)
}

// converse answers one message after another.
func (c *conn) converse(messages <-chan *zmtp.Message) {
	for {
		select {
		case <-c.door.closing.Done():
			c.Because(metrics.ClosedDraining)
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if err := c.handle(m); err != nil {
				if c.ctx.Err() == nil {
					c.Because(metrics.ClosedProtocol)
					c.logEnd(err)
				}
				return
			}
		}
	}
}

// handle answers a message and releases its memory. An error ends the connection.
func (c *conn) handle(m *zmtp.Message) error {
	defer m.Release()
	a := request{conn: c, settings: c.door.settings.Load(), began: m.Began}
	defer a.use.End()
	frames, err := a.guarded(m)
	if err != nil {
		return err
	}
	a.use.Answered()
	if err := c.send(frames); err != nil {
		return err
	}
	return a.closeReason
}

// send sends an answer, and returns when it has left.
func (c *conn) send(frames [][]byte) error {
	c.out.Reset()
	c.out.Frame(nil) // the delimiter that a REQ socket expects
	for _, f := range frames {
		c.out.Frame(f)
	}
	if err := c.zmtp.Send(&c.out); err != nil {
		return err
	}
	select {
	case err := <-c.sent:
		return err
	case <-c.ctx.Done(): // also for a client that did not read
		return c.ctx.Err()
	}
}

// guarded calls answer, and turns a panic into an error for the detector.
func (a *request) guarded(m *zmtp.Message) (frames [][]byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			a.door.log.Error("panic while serving a detector", "panic", p, "stack",
				string(bytes.TrimSpace(debug.Stack())))
			frames, err = a.failed(fmt.Errorf("%w; see the server's log", fault.ErrInternal)), nil
		}
	}()
	return a.answer(m)
}
