package tcp

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// A medium is what a socket is to its session: a pollable, or TLS on it. Its methods do not wait.
type medium interface {
	// TryRead reads what has arrived; EAGAIN: nothing has. 0 without an error: nothing comes any
	// more.
	TryRead(p []byte) (int, error)
	// TryWrite takes what there is room for. What it has not taken is where the next call begins.
	TryWrite(vecs [][]byte) (int, error)
	CloseWrite() error // after everything has been taken
	Unread() int       // bytes for TryRead that have arrived, as far as is known
}

// A pollable is what carries the bytes below TLS: the descriptor of a socket. A connection that has
// these methods itself is its own, as those of a network in memory are, on which tests run this
// door on virtual time.
type pollable interface {
	medium
	// AwaitInput calls done, and again whenever something may have arrived since, or the peer has
	// ended a direction, until it returns true. It fails when the connection is closed, or its
	// deadline for reading passes.
	AwaitInput(done func() bool) error
	// AwaitRoom is the same for room to write.
	AwaitRoom(done func() bool) error
	Room() bool // there is some, or nobody to write to
	Gone() bool // the peer has closed the connection, or it is broken

	Unacknowledged() int // see transport
	Acknowledge()        // likewise
}

// pollableOf is the pollable of a connection.
func pollableOf(c net.Conn) (pollable, error) {
	if w, ok := c.(pollable); ok {
		return w, nil
	}
	k, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("tcp: a %T is not on a descriptor", c)
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

// socketBuffer is asked of the system for what a client has not read, as for containers: with the
// usual 208 KiB an image leaves in thirty pieces.
const socketBuffer = 1 << 20

// A descriptor is the pollable of a socket of the standard library.
type descriptor struct {
	raw   syscall.RawConn
	fd    int
	local bool // to this machine: there is nothing to acknowledge
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

// polled is what the socket is ready for now.
func (d *descriptor) polled(events int16) int16 {
	fds := []unix.PollFd{{Fd: int32(d.fd), Events: events}}
	_, _ = unix.Poll(fds, 0)
	return fds[0].Revents
}

func (d *descriptor) Unread() int {
	n, _ := unix.IoctlGetInt(d.fd, unix.SIOCINQ)
	return n
}

func (d *descriptor) Unacknowledged() int {
	n, _ := unix.IoctlGetInt(d.fd, unix.SIOCOUTQ)
	return n
}

func (d *descriptor) Acknowledge() {
	if !d.local {
		acknowledge(d.fd)
	}
}
