//go:build unix

package load

import (
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// detach returns a duplicate of the socket of nc, which the caller closes, so that Go's poller is
// not woken for it.
func detach(nc net.Conn) (int, error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return 0, fmt.Errorf("a %T is no socket", nc)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var fd int
	var dup error
	if err := raw.Control(func(s uintptr) { fd, dup = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return 0, err
	}
	return fd, os.NewSyscallError("fcntl", dup)
}

// again reports whether a call should be retried later: the socket has no room or no input now,
// or a signal arrived.
func again(err error) bool { return err == unix.EAGAIN || err == unix.EINTR }

func readSocket(fd int, p []byte) (int, error)  { return unix.Read(fd, p) }
func writeSocket(fd int, p []byte) (int, error) { return unix.Write(fd, p) }
func closeSocket(fd int)                        { unix.Close(fd) }
