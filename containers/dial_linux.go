package containers

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// giveUpAfter lets a connection fail when bytes are not acknowledged for that long. (By itself
// the system tries for a quarter of an hour; keep-alive is silent while something is under
// way.)
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
