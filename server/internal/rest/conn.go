package rest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
)

// A listener gives net/http its connections.
type listener struct {
	*listen.Listener
	door *Door
}

// Accept waits for a connection within the limits.
func (l *listener) Accept() (net.Conn, error) {
	for {
		in, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: in, door: l.door, source: l.door.predict.NewSource(),
			client:      gate.ClientOf(in.RemoteAddr().String()),
			certificate: access.NewCertificate(in.PeerCertificate()), head: time.Now()}
		if l.door.add(c) {
			return &listen.HTTPConn{Conn: c}, nil
		}
		c.Close()
	}
}

// add registers a connection, which Shutdown interrupts. It returns false once the door drains.
func (d *Door) add(c *conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining.Load() {
		return false
	}
	d.conns[c] = struct{}{}
	return true
}

// refuse is the answer to a connection above a limit.
func refuse(err error) []byte {
	body, status := errorBody(err), fault.Of(err)
	again := ""
	if status.Retryable {
		again = "Retry-After: 1\r\n"
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n%sConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		status.HTTP, http.StatusText(status.HTTP), again, len(body), body)
}

// A conn is a client's connection as net/http uses it. It limits how long the client may make no
// progress, and records why the connection ended.
type conn struct {
	*listen.Conn
	door *Door

	// Set once.
	source      uint64              // for fairness between connections
	client      string              // gate.ClientOf
	certificate *access.Certificate // nil: the client has shown none

	state  atomic.Int32 // http.ConnState
	unread atomic.Bool  // an answer was sent before all of its request had arrived
	// A handler has begun. The goroutine that reads ahead may write, too: see listen.HTTPConn.
	answering atomic.Bool

	// Owned by net/http's goroutine for this connection.
	head time.Time // when the current head, or the connection, began; zero: not yet

	mu      sync.Mutex
	reading bool // a body, limited by message_timeout
}

// connKey finds the conn in a request's context.
type connKey struct{}

// below returns the conn of a connection that net/http has.
func below(c net.Conn) *conn { return c.(*listen.HTTPConn).Conn.(*conn) }

// Read gives a client header_timeout for the head of a request, and idle_timeout to begin one.
// net/http has both timeouts, but its own cannot change while it serves.
func (c *conn) Read(p []byte) (int, error) {
	state := http.ConnState(c.state.Load())
	heading := state == http.StateNew || state == http.StateIdle // until the head is complete
	if heading {
		// A client most of whose requests are refused waits here. net/http's Shutdown does not wait
		// for a goroutine in this state.
		c.Rest(c.Pause(1), c.door.closing)
		_ = c.Conn.SetReadDeadline(c.headDue())
	}
	n, err := c.Conn.Read(p)
	if heading && n > 0 && c.head.IsZero() {
		c.head = time.Now()
	}
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		c.Because(metrics.ClosedByClient)
	case !errors.Is(err, os.ErrDeadlineExceeded):
		c.Because(metrics.ClosedError)
	case heading && c.head.IsZero():
		c.Because(metrics.ClosedIdle)
	case heading:
		c.Because(metrics.ClosedMessageTimeout)
	}
	return n, err
}

// headDue is when a connection without a complete head is closed; zero: never.
func (c *conn) headDue() time.Time {
	limits := c.door.settings.Load()
	switch {
	case !c.head.IsZero():
		return c.head.Add(limits.HeaderTimeout)
	case limits.IdleTimeout > 0:
		return time.Now().Add(limits.IdleTimeout)
	}
	return time.Time{}
}

// writeStep is how many bytes of an answer are written under one deadline.
const writeStep = 256 << 10

// Write gives the client stall_timeout for each step. Before a handler has begun, the bytes are
// net/http's own answer to a malformed head, after which it closes the connection.
func (c *conn) Write(p []byte) (written int, err error) {
	if !c.answering.Load() {
		c.Because(metrics.ClosedProtocol)
	}
	for {
		step := p[:min(len(p), writeStep)]
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.door.settings.Load().StallTimeout))
		n, err := c.Conn.Write(step)
		written += n
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.Because(metrics.ClosedStalled)
			} else {
				c.Because(metrics.ClosedByClient)
			}
			return written, err
		}
		if p = p[len(step):]; len(p) == 0 {
			return written, nil
		}
	}
}

// Close is called when net/http is done with the connection. If the client may still be sending,
// the connection lingers. net/http lingers for half a second, and not at all after a request that
// was announced as the last: such a client would find the connection reset and lose the answer.
func (c *conn) Close() error {
	d := c.door
	d.mu.Lock()
	delete(d.conns, c)
	d.mu.Unlock()
	if d.draining.Load() {
		c.Because(metrics.ClosedDraining)
	}
	if c.unread.Load() {
		c.Linger()
		return nil
	}
	return c.Conn.Close()
}

// expect sets the time by which more of a body must arrive; zero: no limit. A draining door waits
// for no body.
func (c *conn) expect(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = true
	if c.door.draining.Load() {
		until = time.Unix(1, 0)
	}
	_ = c.Conn.SetReadDeadline(until)
}

// refuseBody ends reading at once: the client has not been told to send the body.
func (c *conn) refuseBody() { _ = c.Conn.SetReadDeadline(time.Unix(1, 0)) }

// arrived removes the deadline of a body. net/http then reads on: either to notice that the client
// hangs up, which no deadline may end, or, if the body is incomplete, to let a client that is still
// sending read the answer.
func (c *conn) arrived(whole bool) {
	const rest = 500 * time.Millisecond // how long net/http reads before it closes a connection
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	var until time.Time
	if !whole {
		until = time.Now().Add(rest)
	}
	_ = c.Conn.SetReadDeadline(until)
}

// interrupt ends the wait for a body, or for a first request, for which net/http's Shutdown would
// wait 5 s.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case http.ConnState(c.state.Load()) == http.StateNew:
		c.Because(metrics.ClosedDraining)
		_ = c.Conn.Close()
	case c.reading:
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}
