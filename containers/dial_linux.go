package containers

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUpAfter makes a connection fail when data is not acknowledged for d. (By default the system
// retries for a quarter of an hour, and keep-alive does not probe while data is unacknowledged.)
func giveUpAfter(d time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if network == "unix" {
			return nil
		}
		var err error
		if cerr := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
		}); cerr != nil {
			return cerr
		}
		return err
	}
}

// noticeLoss does the same for an accepted connection, if it is a TCP connection. If that fails,
// the system's own timeout stays.
func noticeLoss(conn net.Conn, d time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = giveUpAfter(d)("tcp", "", raw)
	}
}
