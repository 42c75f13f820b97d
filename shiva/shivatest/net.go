// Package shivatest has what a test of a Shiva client or server needs of the other side: a
// network in memory, which works inside a testing/synctest bubble, and a server whose every
// answer the test decides.
package shivatest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Net is a network in memory. Its connections hold up to 64 KiB each way, as sockets do, and
// have deadlines. The zero value is ready; any goroutine may use it.
//
// All blocking in it is durable in the sense of testing/synctest, so that fake time passes
// while both sides wait.
type Net struct {
	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*conn]struct{}
}

// Listen takes an address, which is any text.
func (n *Net) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "memory", Addr: address(addr), Err: syscall.EADDRINUSE}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	l := &listener{net: n, addr: address(addr), backlog: make(chan *conn), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to an address that is listened on, and is refused otherwise. It fits
// shiva.WithDialer.
func (n *Net) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: address(addr), Err: err}
	}
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return fail(syscall.ECONNREFUSED)
	}
	near, far := newConnPair(n, l.addr)
	select {
	case l.backlog <- far:
		return near, nil
	case <-l.closed:
		return fail(syscall.ECONNREFUSED)
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// Cut breaks all connections, as if a cable were pulled and the loss noticed at once: reads and
// writes on both sides fail with ECONNRESET, and what was on the way is lost.
func (n *Net) Cut() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for c := range conns {
		c.in.fail(syscall.ECONNRESET)
		c.out.fail(syscall.ECONNRESET)
	}
}

type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }

type listener struct {
	net     *Net
	addr    address
	backlog chan *conn
	once    sync.Once
	closed  chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.backlog:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: "memory", Addr: l.addr, Err: net.ErrClosed}
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		l.net.mu.Lock()
		delete(l.net.listeners, string(l.addr))
		l.net.mu.Unlock()
		close(l.closed)
	})
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// A conn is one end of a connection.
type conn struct {
	net     *Net
	in, out *pipe
	addr    address
}

func newConnPair(n *Net, addr address) (near, far *conn) {
	a, b := newPipe(), newPipe()
	near = &conn{net: n, in: a, out: b, addr: addr}
	far = &conn{net: n, in: b, out: a, addr: addr}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		n.conns = make(map[*conn]struct{})
	}
	n.conns[near] = struct{}{}
	return near, far
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions: this side's calls fail, the other side reads what is on the way
// and then the end, and cannot write any more.
func (c *conn) Close() error {
	c.out.closeWrite()
	c.in.closeRead()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.addr }
func (c *conn) RemoteAddr() net.Addr { return c.addr }

func (c *conn) SetDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	c.out.writeLimit.set(c.out, t)
	return nil
}

func (c *conn) SetReadDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	c.out.writeLimit.set(c.out, t)
	return nil
}

// pipeBytes is what a direction holds before its writer has to wait.
const pipeBytes = 64 << 10

// A pipe is one direction of a connection.
type pipe struct {
	mu       sync.Mutex
	changed  sync.Cond
	data     []byte
	readErr  error // for the reader, once data is empty
	writeErr error // for the writer

	readLimit, writeLimit deadline
}

func newPipe() *pipe {
	p := new(pipe)
	p.changed.L = &p.mu
	return p
}

func (p *pipe) read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.data) == 0 && p.readErr == nil && !p.readLimit.passed && len(b) > 0 {
		p.changed.Wait()
	}
	switch {
	case errors.Is(p.readErr, net.ErrClosed):
		return 0, p.readErr
	case p.readLimit.passed:
		return 0, os.ErrDeadlineExceeded
	case len(p.data) == 0 && len(b) > 0:
		return 0, p.readErr
	}
	n := copy(b, p.data)
	p.data = p.data[n:]
	p.changed.Broadcast()
	return n, nil
}

func (p *pipe) write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.writeErr != nil:
			return n, p.writeErr
		case p.writeLimit.passed:
			return n, os.ErrDeadlineExceeded
		}
		if room := pipeBytes - len(p.data); room > 0 {
			k := min(room, len(b)-n)
			p.data = append(p.data, b[n:n+k]...)
			n += k
			p.changed.Broadcast()
		}
		if n == len(b) {
			return n, nil
		}
		p.changed.Wait()
	}
}

func (p *pipe) closeWrite() { p.end(io.EOF, net.ErrClosed, false) }
func (p *pipe) closeRead()  { p.end(net.ErrClosed, syscall.EPIPE, true) }

// fail ends the pipe and loses what is in it.
func (p *pipe) fail(err error) { p.end(err, err, true) }

// end ends the pipe; the first reason stays.
func (p *pipe) end(readErr, writeErr error, lose bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.readErr == nil || errors.Is(readErr, net.ErrClosed) {
		p.readErr = readErr
	}
	if p.writeErr == nil || errors.Is(writeErr, net.ErrClosed) {
		p.writeErr = writeErr
	}
	if lose {
		p.data = nil
	}
	p.changed.Broadcast()
}

// A deadline is one of a pipe's two; its pipe's mutex guards it.
type deadline struct {
	timer  *time.Timer
	passed bool
}

// set changes the deadline d of p.
func (d *deadline) set(p *pipe, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	d.passed = !t.IsZero() && !t.After(time.Now())
	if !t.IsZero() && !d.passed {
		var timer *time.Timer
		timer = time.AfterFunc(time.Until(t), func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if d.timer == timer { // not replaced while this waited for the mutex
				d.passed = true
				p.changed.Broadcast()
			}
		})
		d.timer = timer
	}
	p.changed.Broadcast()
}
