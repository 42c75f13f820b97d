package containers

import (
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
