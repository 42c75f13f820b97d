package rest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/hosts"
	"github.com/shivad/shivad/server/metrics"
)

// A listener lets connections in up to the door's limit, and tells the others why not.
type listener struct {
	net.Listener
	door *Door
}

// Accept is for net/http. An error of it is one of the listener: net/http tries again after
// those that pass, such as a lack of descriptors.
func (l *listener) Accept() (net.Conn, error) {
	d := l.door
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		d.metrics.Opened()
		limits := d.settings.Load()
		c := &conn{Conn: nc, door: d, source: d.predict.NewSource(), host: hosts.Of(nc.RemoteAddr()), head: time.Now()}
		if !d.hosts.Enter(c.host, limits.Hosts) {
			d.metrics.Closed(metrics.ClosedAddressLimit)
			d.refuse(nc, fmt.Sprintf("your address has as many connections as one may (rest.connections_per_address = %d)", limits.Hosts.Most))
			continue
		}
		room, draining := d.add(c, limits.Connections)
		if room {
			return c, nil
		}
		d.hosts.Leave(c.host)
		if draining {
			d.metrics.Closed(metrics.ClosedDraining)
			nc.Close()
			continue
		}
		d.metrics.Closed(metrics.ClosedConnectionLimit)
		d.refuse(nc, fmt.Sprintf("the server has as many connections as it may (rest.connections = %d)", limits.Connections))
	}
}

// add counts a connection among those that are open, if there is room and it is not too late.
func (d *Door) add(c *conn, most int) (room, draining bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	draining = d.draining.Load()
	if room = !draining && len(d.conns) < most; room {
		d.conns[c] = struct{}{}
	}
	return room, draining
}

// refuse answers a connection that is not let in, without waiting for it.
func (d *Door) refuse(c net.Conn, why string) {
	const (
		lingering = 16 // at most, so many descriptors are set aside for it
		linger    = time.Second
	)
	body := errorBody("overloaded: " + why)
	_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // an empty socket takes it at once
	_, _ = fmt.Fprintf(c, "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	// To close at once would reset the connection when the request arrives, and the answer
	// would be lost.
	tcp, ok := c.(*net.TCPConn)
	if n := d.refused.Add(1); !ok || n > lingering || tcp.CloseWrite() != nil {
		d.refused.Add(-1)
		c.Close()
		return
	}
	time.AfterFunc(linger, func() {
		c.Close()
		d.refused.Add(-1)
	})
}

// A conn is a connection of a client as net/http sees it. It counts, bounds how long the client
// may stand still, and remembers why it ended.
type conn struct {
	net.Conn
	door   *Door
	source uint64     // for fairness; set once
	host   netip.Addr // it comes from; likewise

	state atomic.Int32                   // http.ConnState
	why   atomic.Pointer[metrics.Closed] // the first reason for its end
	once  sync.Once                      // of Close

	// Of net/http's goroutine for this connection.
	head      time.Time // when the head of the next request began, the first one's with the connection; zero: it has not
	answering bool      // a handler has begun

	mu      sync.Mutex
	reading bool // a body, under message_timeout
}

// connKey finds the conn in a request's context.
type connKey struct{}

// connOf returns a request's connection; nil in tests without one.
func connOf(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// because notes why the connection ends, unless that is known already.
func (c *conn) because(why metrics.Closed) { c.why.CompareAndSwap(nil, &why) }

// Read returns a client header_timeout for the head of a request, and idle_timeout to begin
// one. net/http would as well, but by what it was made with.
func (c *conn) Read(p []byte) (int, error) {
	state := http.ConnState(c.state.Load())
	heading := state == http.StateNew || state == http.StateIdle // until the head is there
	if heading {
		_ = c.Conn.SetReadDeadline(c.headDue())
	}
	n, err := c.Conn.Read(p)
	c.door.metrics.Received(n)
	if heading && n > 0 && c.head.IsZero() {
		c.head = time.Now()
	}
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		c.because(metrics.ClosedByClient)
	case !errors.Is(err, os.ErrDeadlineExceeded):
		c.because(metrics.ClosedError)
	case heading && c.head.IsZero():
		c.because(metrics.ClosedIdle)
	case heading:
		c.because(metrics.ClosedMessageTimeout)
	}
	return n, err
}

// headDue is when a connection without a request is closed; zero: never.
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

// writeStep is how much of an answer may leave between two looks at the clock.
const writeStep = 256 << 10

// Write gives the client stall_timeout for each step. What comes when no handler has begun is
// net/http's own answer to a head that it does not take, after which it closes the connection.
func (c *conn) Write(p []byte) (written int, err error) {
	if !c.answering {
		c.because(metrics.ClosedProtocol)
	}
	for {
		step := p[:min(len(p), writeStep)]
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.door.settings.Load().StallTimeout))
		n, err := c.Conn.Write(step)
		written += n
		c.door.metrics.Sent(n)
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.because(metrics.ClosedStalled)
			} else {
				c.because(metrics.ClosedByClient)
			}
			return written, err
		}
		if p = p[len(step):]; len(p) == 0 {
			return written, nil
		}
	}
}

// CloseWrite is called by net/http before it waits a little and closes: a client that is still
// sending then reads the answer, whose end this is, before its connection is reset.
func (c *conn) CloseWrite() error { return c.Conn.(*net.TCPConn).CloseWrite() }

// Close is called by net/http when it has done with the connection.
func (c *conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = c.Conn.Close()
		d := c.door
		d.mu.Lock()
		delete(d.conns, c)
		d.mu.Unlock()
		d.hosts.Leave(c.host)
		switch why := c.why.Load(); {
		case why != nil:
			d.metrics.Closed(*why)
		case d.draining.Load():
			d.metrics.Closed(metrics.ClosedDraining)
		default:
			d.metrics.Closed(metrics.ClosedByClient) // it asked for it: Connection: close
		}
	})
	return err
}

// expect gives the rest of a body until then to arrive; zero: as long as it takes. When the
// server drains, no body is waited for.
func (c *conn) expect(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = true
	if c.door.draining.Load() {
		until = time.Unix(1, 0)
	}
	_ = c.Conn.SetReadDeadline(until)
}

// arrived ends the time of a body, which may not be there to its end. If it is, net/http
// watches for the client's going, which must not end by a deadline.
func (c *conn) arrived(whole bool) {
	const rest = 500 * time.Millisecond // what net/http gives a client to read why it is closed
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reading = false
	var until time.Time
	if !whole {
		until = time.Now().Add(rest)
	}
	_ = c.Conn.SetReadDeadline(until)
}

// interrupt ends the wait for a body, or for a first request, for which net/http would wait 5 s.
func (c *conn) interrupt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case http.ConnState(c.state.Load()) == http.StateNew:
		_ = c.Conn.Close()
	case c.reading:
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
}
