package zmtp

import (
	"net"
	"syscall"
	"unsafe"
)

// maxVector is IOV_MAX of Linux: more entries are an error.
const maxVector = 1024

// A vector is the argument of writev, filled anew for each call in memory that is kept.
// (net.Buffers and unix.Writev allocate for each call, and block or need a deadline.)
type vector struct {
	iov []syscall.Iovec
}

// rawConn returns access to the descriptor of a socket that can be written without blocking.
func rawConn(c net.Conn) syscall.RawConn {
	switch c := c.(type) {
	case *net.TCPConn, *net.UnixConn:
		rc, err := c.(syscall.Conn).SyscallConn()
		if err == nil {
			return rc
		}
	}
	return nil
}

// fill points the vector at the unwritten bytes of the messages, in order, as far as it has room.
func (v *vector) fill(queue []*Outgoing) {
	v.iov = v.iov[:0]
	for _, o := range queue {
		offset := o.offset
		for _, g := range o.segments[o.next:] {
			if len(v.iov) == maxVector {
				return
			}
			b := o.bytes(g)[offset:]
			offset = 0
			e := syscall.Iovec{Base: unsafe.SliceData(b)}
			e.SetLen(len(b))
			v.iov = append(v.iov, e)
		}
	}
}

// write makes the system call on a non-blocking descriptor.
func (v *vector) write(fd uintptr) (int, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v.iov))),
		uintptr(len(v.iov)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// clear drops the pointers, which would keep sent memory alive.
func (v *vector) clear() { clear(v.iov) }

// unsent returns how many bytes of a socket the peer has not taken, or, over TCP, not acknowledged;
// 0 if that is unknown.
func unsent(fd uintptr) int {
	var n int32
	// TIOCOUTQ is SIOCOUTQ.
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n)))
	return int(n)
}
