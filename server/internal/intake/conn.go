package intake

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/quota"
	"github.com/shivad/shivad/server/metrics"
)

// A Conn is a connection that was let in. Its bytes and the reason for its end are counted.
type Conn struct {
	net.Conn
	listener *Listener
	door     net.Addr
	host     Host
	peer     net.Addr
	why      atomic.Pointer[metrics.Closed]
	turn     atomic.Int64 // when the goroutine that reads last waited, or let others go first
	left     sync.Once
	lingers  atomic.Bool    // the listener closes it
	account  *quota.Account // of the host; nil: there are no quotas
	claims   quota.Claims

	// Set by shake of a connection to an address of TLS; but for socket nil of others.
	socket      net.Conn
	wire        *wire
	tls         *tls.Conn
	certificate *x509.Certificate
}

// Host is whose connection it is, where clients are counted.
func (c *Conn) Host() Host { return c.host }

// RemoteAddr is the client's address; of a Unix socket that of its process, as
// "uid=1000,pid=4711", whose network is "unix".
func (c *Conn) RemoteAddr() net.Addr { return c.peer }

// Door is the address that the client has connected to, as the door listens on it.
func (c *Conn) Door() net.Addr { return c.door }

// Account is the quota of where the client is; nil: there is none.
func (c *Conn) Account() *quota.Account { return c.account }

// Claim counts the connection for an identity's account as well, nil for none, until it ends. The
// error is that of an identity that has too many.
func (c *Conn) Claim(a *quota.Account) error { return c.claims.Add(a) }

// Read reads and counts. It lets other goroutines go first when the client always has something to
// be read, such as 10,000 requests in a pipeline: one that never waits keeps its processor for the
// 10 ms that the runtime gives it, and all other clients wait for a few of those.
func (c *Conn) Read(p []byte) (int, error) {
	const (
		waited = 20 * time.Microsecond  // and did not just copy
		turn   = 200 * time.Microsecond // without waiting
	)
	began := time.Now()
	n, err := c.Conn.Read(p)
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

// Write writes and counts.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.listener.Metrics.Sent(n)
	return n, err
}

// CloseWrite ends our direction.
func (c *Conn) CloseWrite() error { return c.Conn.(halfCloser).CloseWrite() }

// A halfCloser ends one direction of a connection, as those of TCP do.
type halfCloser interface{ CloseWrite() error }

// Because records why the connection ends. The first reason holds.
func (c *Conn) Because(why metrics.Closed) { c.why.CompareAndSwap(nil, &why) }

// Leave takes the connection off the count without closing it, for a door that has handed the
// descriptor over. Without a reason (see Because) the client has ended it. Calls after the first
// have no effect.
func (c *Conn) Leave() {
	c.left.Do(func() {
		c.Because(metrics.ClosedByClient)
		c.listener.leave(c.host)
		c.claims.End()
		if c.account != nil {
			c.listener.Addresses.Leave(c.host.String())
		}
		c.listener.Metrics.Closed(*c.why.Load())
	})
}

// Close closes the connection and takes it off the count.
func (c *Conn) Close() error {
	if c.lingers.Load() {
		return nil
	}
	err := c.Conn.Close()
	c.Leave()
	return err
}

// Linger is Close for a connection whose client is still sending and has not read all that was
// written: closed at once it would be reset, and what was written last be lost. Nobody may read
// the connection any more.
func (c *Conn) Linger() {
	c.lingers.Store(true)
	if !c.listener.linger(c.Conn) {
		c.Conn.Close()
	}
	c.Leave()
}
