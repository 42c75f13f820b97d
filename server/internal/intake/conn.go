package intake

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/server/metrics"
)

// A Conn is a connection that was let in. Its bytes and the reason for its end are counted.
type Conn struct {
	net.Conn
	listener *Listener
	host     netip.Addr
	why      atomic.Pointer[metrics.Closed]
	left     sync.Once
	lingers  atomic.Bool // the listener closes it
}

// Host is where the connection comes from: the IP address of the client, or of IPv6 the network
// of 64 bits, all of which one host may use. It is the zero Addr for what is no address of the
// Internet.
func (c *Conn) Host() netip.Addr { return c.host }

func hostOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Addr{}
	}
	host := at.Addr().Unmap().WithZone("")
	if host.Is6() && !host.IsLoopback() {
		network, _ := host.Prefix(64)
		return network.Addr()
	}
	return host
}

// Read reads and counts.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.listener.Metrics.Received(n)
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
