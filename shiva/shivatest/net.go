// Package shivatest has what a test of a Shiva client or server needs of the other side: a
// network in memory, which works inside a testing/synctest bubble, and a server whose every
// answer the test decides.
package shivatest

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// A Net is a network in memory. Its connections hold some bytes each way, as sockets do, have
// deadlines, and end as those of TCP do: a direction at a time, or both at once, and with a reset
// where bytes were lost. The zero value is ready; any goroutine may use it.
//
// All blocking in it is durable in the sense of testing/synctest, so that fake time passes
// while both sides wait.
type Net struct {
	// Buffer is what a direction of a connection holds before its writer has to wait; 0: 64 KiB.
	// Piece is how much one Read returns at most; 0: what there is. Both are set before connections
	// are made.
	Buffer, Piece int
	// Resets has what is on the way to the other end lost when an end is closed that has not read
	// everything, as TCP may.
	Resets bool

	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*Link]struct{} // the ends that Dial has returned
}

// Listen takes an address, which is any text.
func (n *Net) Listen(addr string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[addr] != nil {
		return nil, &net.OpError{Op: "listen", Net: "memory", Addr: Addr(addr), Err: syscall.EADDRINUSE}
	}
	if n.listeners == nil {
		n.listeners = make(map[string]*listener)
	}
	l := &listener{net: n, addr: Addr(addr), backlog: make(chan *Link), closed: make(chan struct{})}
	n.listeners[addr] = l
	return l, nil
}

// Dial connects to an address that is listened on, and is refused otherwise. It fits
// shiva.WithDialer.
func (n *Net) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := n.DialFrom(ctx, addr, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialFrom is Dial for a client that has an address of its own.
func (n *Net) DialFrom(ctx context.Context, from, addr string) (*Link, error) {
	fail := func(err error) (*Link, error) {
		return nil, &net.OpError{Op: "dial", Net: "memory", Addr: Addr(addr), Err: err}
	}
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return fail(syscall.ECONNREFUSED)
	}
	near, far := n.Pair(from, addr)
	select {
	case l.backlog <- far:
		return near, nil
	case <-l.closed:
		near.Cut()
		return fail(syscall.ECONNREFUSED)
	case <-ctx.Done():
		near.Cut()
		return fail(ctx.Err())
	}
}

// pipeBytes is what a direction of a connection holds unless a test says otherwise.
const pipeBytes = 64 << 10

// Pair makes a connection between two addresses without a listener.
func (n *Net) Pair(nearAddr, farAddr string) (near, far *Link) {
	size := cmp.Or(n.Buffer, pipeBytes)
	a, b := newPipe(size, n.Piece), newPipe(size, n.Piece)
	near = &Link{net: n, in: a, out: b, local: Addr(nearAddr), remote: Addr(farAddr)}
	far = &Link{net: n, in: b, out: a, local: Addr(farAddr), remote: Addr(nearAddr)}
	a.other, b.other = b, a
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		n.conns = make(map[*Link]struct{})
	}
	n.conns[near] = struct{}{}
	return near, far
}

// Cut breaks all connections, as Link.Cut does.
func (n *Net) Cut() {
	n.mu.Lock()
	conns := n.conns
	n.conns = nil
	n.mu.Unlock()
	for c := range conns {
		c.Cut()
	}
}

// An Addr is one of the network.
type Addr string

// Network is "memory".
func (Addr) Network() string  { return "memory" }
func (a Addr) String() string { return string(a) }

type listener struct {
	net     *Net
	addr    Addr
	backlog chan *Link
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

// A Link is one end of a connection. Beside what every connection has it has what fails of one, and
// methods that do not wait, for a server that waits for many connections at once.
type Link struct {
	net           *Net
	in, out       *pipe
	local, remote Addr
}

func (c *Link) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *Link) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions: this side's calls fail, the other side reads what is on the way and
// then the end, and cannot write any more. See Net.Resets.
func (c *Link) Close() error {
	if c.in.closeRead() && c.net.Resets {
		c.out.end(syscall.ECONNRESET, net.ErrClosed, true)
	}
	c.out.closeWrite()
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	return nil
}

// CloseWrite ends this side's direction: the other side reads what is on the way and then the end.
func (c *Link) CloseWrite() error {
	c.out.closeWrite()
	return nil
}

// Cut breaks the connection, as if a cable were pulled and the loss noticed at once: reads and
// writes on both sides fail with ECONNRESET, and what was on the way is lost.
func (c *Link) Cut() {
	c.in.end(syscall.ECONNRESET, syscall.ECONNRESET, true)
	c.out.end(syscall.ECONNRESET, syscall.ECONNRESET, true)
}

// CutAfter breaks the connection when that many more bytes have been sent, or received, by this
// side; negative: never. The other side of that direction reads these bytes first.
func (c *Link) CutAfter(sent, received int) {
	c.out.limit(sent)
	c.in.limit(received)
}

// Stall keeps what comes from now on from being read at the other end, or what is sent here, or
// neither. The bytes wait on the way.
func (c *Link) Stall(sent, received bool) {
	c.out.stall(sent)
	c.in.stall(received)
}

// LocalAddr is an Addr.
func (c *Link) LocalAddr() net.Addr { return c.local }

// RemoteAddr is an Addr.
func (c *Link) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is as of net.Conn, and so are the next two.
func (c *Link) SetDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	c.out.writeLimit.set(c.out, t)
	return nil
}

// SetReadDeadline is for Read, and what waits for input.
func (c *Link) SetReadDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	return nil
}

// SetWriteDeadline is for Write, and what waits for room.
func (c *Link) SetWriteDeadline(t time.Time) error {
	c.out.writeLimit.set(c.out, t)
	return nil
}

// TryRead reads what has arrived; EAGAIN: nothing has. At the end it returns 0 without an error.
func (c *Link) TryRead(p []byte) (int, error) { return c.in.tryRead(p) }

// TryWrite writes what there is room for, from as many parts as it takes.
func (c *Link) TryWrite(vecs [][]byte) (n int, err error) {
	for _, v := range vecs {
		k, err := c.out.tryWrite(v)
		n += k
		switch {
		case n > 0 && err != nil: // it comes again
			return n, nil
		case err != nil:
			return 0, err
		case k < len(v):
			return n, nil
		}
	}
	return n, nil
}

// AwaitInput calls done, and again whenever something may have arrived since, or the other end has
// ended a direction, until it returns true. It fails when this end is closed, or its deadline for
// reading passes.
func (c *Link) AwaitInput(done func() bool) error {
	return c.in.await(done, func() error {
		switch {
		case errors.Is(c.in.readErr, net.ErrClosed):
			return c.in.readErr
		case c.in.readLimit.passed:
			return errDeadline
		}
		return nil
	})
}

// AwaitRoom is the same for room to write.
func (c *Link) AwaitRoom(done func() bool) error {
	return c.out.await(done, func() error {
		switch {
		case errors.Is(c.out.writeErr, net.ErrClosed):
			return c.out.writeErr
		case c.out.writeLimit.passed:
			return errDeadline
		}
		return nil
	})
}

// Room tells whether there is some to write, or nobody to write to.
func (c *Link) Room() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writeErr != nil || len(c.out.data) < c.out.size
}

// Gone tells whether the other end is closed, or the connection broken.
func (c *Link) Gone() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writeErr != nil && !errors.Is(c.out.writeErr, net.ErrClosed)
}

// Unread is how many bytes have arrived that nobody has read.
func (c *Link) Unread() int { return c.in.len() }

// Unacknowledged is how many bytes are on the way to the other end.
func (c *Link) Unacknowledged() int { return c.out.len() }

// Acknowledge does nothing: nobody waits for it.
func (c *Link) Acknowledge() {}
