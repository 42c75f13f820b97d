package tcp

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A medium is a socket as its session uses it: a pollable, or TLS on one. Its methods do not block.
type medium interface {
	// TryRead reads bytes that have arrived. EAGAIN: none has. 0 without an error: the input has
	// ended.
	TryRead(p []byte) (int, error)
	// TryWrite writes as many bytes as there is room for. The next call must begin with the rest.
	TryWrite(vecs [][]byte) (int, error)
	CloseWrite() error // after everything has been written
	Unread() int       // bytes ready for TryRead, as far as known
}

// A pollable carries the bytes below TLS: the descriptor of a socket, or a connection that has
// these methods itself, such as one of the network in memory, with which tests run this door on
// virtual time.
type pollable interface {
	medium
	// AwaitInput calls done, and again whenever bytes may have arrived or the peer has ended a
	// direction, until done returns true. It fails when the connection is closed or its read
	// deadline passes.
	AwaitInput(done func() bool) error
	// AwaitRoom is the same for room to write.
	AwaitRoom(done func() bool) error
	Room() bool // there is room, or a write would fail
	Gone() bool // the peer has closed the connection, or it is broken

	Unacknowledged() int // see transport
	Acknowledge()        // see transport
}

// pollableOf returns the pollable of a connection.
func pollableOf(c net.Conn) (pollable, error) {
	if w, ok := c.(pollable); ok {
		return w, nil
	}
	k, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("tcp: a %T has no file descriptor", c)
	}
	raw, err := k.SyscallConn()
	if err != nil {
		return nil, err
	}
	d := &descriptor{raw: raw}
	if u, ok := c.(*net.UnixConn); ok {
		d.local = true
		_ = u.SetWriteBuffer(socketBuffer) // the system may allow less
	}
	return d, raw.Control(func(fd uintptr) { d.fd = int(fd) })
}

// socketBuffer is the size of the send buffer that the door requests, as for containers: with the
// usual 208 KiB an image leaves in thirty pieces.
const socketBuffer = 1 << 20

// A descriptor is the pollable of a standard library socket.
type descriptor struct {
	raw   syscall.RawConn
	fd    int
	local bool // a Unix socket, which has no acknowledgements
}

func (d *descriptor) TryRead(p []byte) (int, error) {
	for {
		if n, err := unix.Read(d.fd, p); err != unix.EINTR {
			return n, err
		}
	}
}

func (d *descriptor) TryWrite(vecs [][]byte) (int, error) { return write(d.fd, vecs) }

func (d *descriptor) CloseWrite() error { return unix.Shutdown(d.fd, unix.SHUT_WR) }

func (d *descriptor) AwaitInput(done func() bool) error {
	return d.raw.Read(func(uintptr) bool { return done() })
}

func (d *descriptor) AwaitRoom(done func() bool) error {
	return d.raw.Write(func(uintptr) bool { return done() })
}

func (d *descriptor) Room() bool {
	return d.polled(unix.POLLOUT)&(unix.POLLOUT|unix.POLLHUP|unix.POLLERR) != 0
}

func (d *descriptor) Gone() bool { return d.polled(0)&(unix.POLLHUP|unix.POLLERR) != 0 }

// polled returns the events for which the socket is ready.
func (d *descriptor) polled(events int16) int16 {
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: events}}
	_, _ = unix.Poll(fds, 0)
	return fds[0].Revents
}

func (d *descriptor) Unread() int { return queued(d.fd, unix.SIOCINQ) }

func (d *descriptor) Unacknowledged() int { return queued(d.fd, unix.SIOCOUTQ) }

func (d *descriptor) Acknowledge() {
	if !d.local {
		acknowledge(d.fd)
	}
}
