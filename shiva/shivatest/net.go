// Package shivatest is for tests of Shiva clients and servers: a network in memory, which works
// inside a testing/synctest bubble, and a server whose answers the test decides.
package shivatest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Net is a network in memory. Its connections buffer bytes in each direction, have deadlines, and
// end as TCP connections do: one direction at a time or both, with a reset if bytes were lost. The
// zero value is ready. Any goroutine may use it.
//
// All blocking is durable in the sense of testing/synctest, so virtual time passes while both sides
// wait.
type Net struct {
	// Buffer is the capacity of each direction of a connection, in bytes; 0: 64 KiB. Piece is the
	// most that one Read returns; 0: no limit. Set both before making connections.
	Buffer, Piece int
	// Resets makes Close discard bytes in flight to the other end if this end has unread input, as
	// TCP may.
	Resets bool

	mu        sync.Mutex
	listeners map[string]*listener
	conns     map[*Link]struct{} // the dialing ends
	stalled   []*Link            // by Stall, including links closed since
}

// Listen listens on an address, which may be any text.
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

// Dial connects to an address. It is refused if nothing listens there. It fits shiva.WithDialer.
func (n *Net) Dial(ctx context.Context, _, addr string) (net.Conn, error) {
	c, err := n.DialFrom(ctx, addr, addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// DialFrom is Dial with an address for the client.
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

// pipeBytes is the default of Net.Buffer.
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

// Stall stalls all present connections in both directions, or resumes them. See Link.Stall.
func (n *Net) Stall(on bool) {
	n.mu.Lock()
	conns := slices.AppendSeq(n.stalled, maps.Keys(n.conns))
	n.stalled = nil
	if on {
		n.stalled = conns
	}
	n.mu.Unlock()
	for _, c := range conns {
		c.Stall(on, on)
	}
}

// An Addr is an address on a Net.
type Addr string

// Network returns "memory".
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

// A Link is one end of a connection. Beyond net.Conn it has methods that inject faults, and others
// that do not block, for servers that poll many connections.
type Link struct {
	net           *Net
	in, out       *pipe
	local, remote Addr
}

func (c *Link) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *Link) Write(p []byte) (int, error) { return c.out.write(p) }

// Close closes both directions: this end's calls fail, the other end reads the bytes in flight and
// then io.EOF, and can no longer write. See Net.Resets.
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

// CloseWrite closes the writing side: the other end reads the bytes in flight and then io.EOF.
func (c *Link) CloseWrite() error {
	c.out.closeWrite()
	return nil
}

// Cut breaks the connection like a pulled cable, but noticed at once: reads and writes at both ends
// fail with ECONNRESET, and bytes in flight are lost.
func (c *Link) Cut() {
	c.in.end(syscall.ECONNRESET, syscall.ECONNRESET, true)
	c.out.end(syscall.ECONNRESET, syscall.ECONNRESET, true)
}

// CutAfter breaks the connection once this end has sent or received this many more bytes; negative:
// never. The reader of that direction still gets these bytes.
func (c *Link) CutAfter(sent, received int) {
	c.out.limit(sent)
	c.in.limit(received)
}

// Stall holds back the bytes sent by this end, or those sent to it, until it is called with false.
func (c *Link) Stall(sent, received bool) {
	c.out.stall(sent)
	c.in.stall(received)
}

// LocalAddr is an Addr.
func (c *Link) LocalAddr() net.Addr { return c.local }

// RemoteAddr is an Addr.
func (c *Link) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets both deadlines, as for net.Conn.
func (c *Link) SetDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	c.out.writeLimit.set(c.out, t)
	return nil
}

// SetReadDeadline applies to Read and AwaitInput.
func (c *Link) SetReadDeadline(t time.Time) error {
	c.in.readLimit.set(c.in, t)
	return nil
}

// SetWriteDeadline applies to Write and AwaitRoom.
func (c *Link) SetWriteDeadline(t time.Time) error {
	c.out.writeLimit.set(c.out, t)
	return nil
}

// TryRead reads what has arrived, and fails with EAGAIN if nothing has. At the end of the input it
// returns 0 and no error.
func (c *Link) TryRead(p []byte) (int, error) { return c.in.tryRead(p) }

// TryWrite writes as many bytes of vecs as there is room for.
func (c *Link) TryWrite(vecs [][]byte) (n int, err error) {
	for _, v := range vecs {
		k, err := c.out.tryWrite(v)
		n += k
		switch {
		case n > 0 && err != nil: // the next call returns the error
			return n, nil
		case err != nil:
			return 0, err
		case k < len(v):
			return n, nil
		}
	}
	return n, nil
}

// AwaitInput calls done at once, and again whenever bytes may have arrived or a direction has
// ended, until done returns true. It fails when this end is closed or its read deadline passes.
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

// AwaitRoom is AwaitInput for room to write and the write deadline.
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

// Room reports whether TryWrite would write or fail at once.
func (c *Link) Room() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writeErr != nil || len(c.out.data) < c.out.size
}

// Gone reports whether the other end is closed or the connection broken.
func (c *Link) Gone() bool {
	c.out.mu.Lock()
	defer c.out.mu.Unlock()
	return c.out.writeErr != nil && !errors.Is(c.out.writeErr, net.ErrClosed)
}

// Unread returns how many bytes have arrived and not been read.
func (c *Link) Unread() int { return c.in.len() }

// Unacknowledged returns how many bytes are in flight to the other end.
func (c *Link) Unacknowledged() int { return c.out.len() }

// Acknowledge does nothing: the network needs no acknowledgements.
func (c *Link) Acknowledge() {}
