package listen

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/metrics"
)

// A Conn is an admitted connection. Its bytes and the reason for its end are counted.
type Conn struct {
	net.Conn
	listener *Listener
	door     net.Addr
	host     Host
	peer     net.Addr
	why      atomic.Int32 // a metrics.Closed plus 1; 0: not known yet
	left     atomic.Bool
	lingers  atomic.Bool     // the listener will close the connection
	turn     atomic.Int64    // when the reading goroutine last waited or yielded
	account  *access.Account // of the host; nil: no quotas
	claims   access.Claims
	rests    bool // see Rest

	socket      net.Conn
	*encryption // nil: a plain connection
}

// An encryption has the additional fields of a connection to a TLS address. begin sets it.
type encryption struct {
	wire        *wire
	tls         *tls.Conn
	certificate *x509.Certificate
}

// Host returns the host that the connection counts for.
func (c *Conn) Host() Host { return c.host }

// RemoteAddr is the client's address. On a Unix socket it names the client's process,
// "uid=1000,pid=4711", and its network is "unix".
func (c *Conn) RemoteAddr() net.Addr { return c.peer }

// Door is the listening address that the client connected to.
func (c *Conn) Door() net.Addr { return c.door }

// Account is the quota account of the client's host; nil if there is none.
func (c *Conn) Account() *access.Account { return c.account }

// Claim counts the connection for an identity's account as well, until it ends; nil is no account.
// It fails if the identity has too many connections.
func (c *Conn) Claim(a *access.Account) error { return c.claims.Add(a) }

// Charge begins the Use of a request of that many bytes on the connection, for these payers. An
// error refuses it.
func (c *Conn) Charge(u *access.Use, of access.Payers, bytes int64, now time.Time) error {
	return c.claims.Begin(u, of, bytes, now)
}

// Again refuses a request of these payers before it is read: see [access.Claims.Again].
func (c *Conn) Again(of func() access.Payers, now time.Time) *access.QuotaError {
	return c.claims.Again(of, now)
}

// Pause returns how long the reader of the connection must wait before the next read. It is 0
// unless many requests on the connection exceed a rate. Each call takes one of the given number of
// parts of a turn (see package access).
func (c *Conn) Pause(parts int) time.Duration { return c.claims.Pause(parts) }

// Read reads and counts the bytes. It yields the processor while the client always has more input
// ready, such as 10,000 pipelined requests: a goroutine that never waits keeps its processor for
// the 10 ms of the runtime's time slice, and all other clients wait for several such slices.
func (c *Conn) Read(p []byte) (int, error) {
	const (
		waited = 20 * time.Microsecond  // longer than a copy takes
		turn   = 200 * time.Microsecond // without waiting
	)
	began := time.Now()
	read := c.Conn.Read
	if c.rests {
		read = c.readAfterRest
	}
	n, err := read(p)
	c.listener.Metrics.Received(n)
	now := time.Now()
	switch {
	case now.Sub(began) > waited:
		c.turn.Store(now.UnixNano())
	case now.UnixNano()-c.turn.Load() > int64(turn):
		runtime.Gosched()
		c.turn.Store(time.Now().UnixNano())
	}
	return n, err
}

// Write writes and counts the bytes.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.listener.Metrics.Sent(n)
	return n, err
}

// CloseWrite closes the writing side.
func (c *Conn) CloseWrite() error { return c.Conn.(halfCloser).CloseWrite() }

// A halfCloser can close only its writing side, as TCP connections can.
type halfCloser interface{ CloseWrite() error }

// Because records why the connection ends. Later reasons are ignored.
func (c *Conn) Because(why metrics.Closed) { c.why.CompareAndSwap(0, int32(why)+1) }

// HandOver returns the connection below, for a door that continues with its descriptor and closes
// it. The Conn drops its reference: the connection below takes more memory than the rest of an idle
// Conn.
func (c *Conn) HandOver() net.Conn {
	below := c.socket
	c.Conn, c.socket = nil, nil
	return below
}

// TakeBack makes below the connection again, for a door that continues on the standard library's
// sockets with a duplicate of the descriptor.
func (c *Conn) TakeBack(below net.Conn) { c.Conn, c.socket = below, below }

// Leave removes the connection from the counts without closing it, for a door that has handed its
// descriptor over. Without a reason (see Because) it counts as closed by the client. Calls after
// the first have no effect.
func (c *Conn) Leave() {
	if c.left.Swap(true) {
		return
	}
	c.Because(metrics.ClosedByClient)
	c.listener.leave(c.host)
	c.claims.End()
	if c.account != nil {
		c.listener.Addresses.Leave(c.host.String())
	}
	c.listener.Metrics.Closed(metrics.Closed(c.why.Load() - 1))
}

// Close closes the connection and removes it from the counts.
func (c *Conn) Close() error {
	if c.lingers.Load() {
		return nil
	}
	err := c.Conn.Close()
	c.Leave()
	return err
}

// Linger is Close for a connection whose client is still sending and may not have read everything.
// An immediate close would reset the connection, and the last bytes written would be lost. The
// caller must not read from the connection any more.
func (c *Conn) Linger() {
	c.lingers.Store(true)
	if !c.listener.linger(c.Conn) {
		c.Conn.Close()
	}
	c.Leave()
}
