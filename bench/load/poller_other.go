//go:build !linux

package load

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// poller exists on Linux only.
type poller struct{}

var errLinux = fmt.Errorf("load: needs Linux: %w", errors.ErrUnsupported)

func newPoller() (*poller, error)                      { return nil, errLinux }
func (*poller) close()                                 {}
func (*poller) sharpen() error                         { return errLinux }
func (*poller) add(int, int) error                     { return errLinux }
func (*poller) output(int, int, bool) error            { return errLinux }
func (*poller) wait(time.Duration) (int, error)        { return 0, errLinux }
func (*poller) event(int) (id int, input, output bool) { return 0, false, false }

func (*poller) readStamped(int, []byte) (int, time.Time, error) {
	return 0, time.Time{}, errLinux
}

func stampSocket(int) error                { return errLinux }
func detach(net.Conn) (int, error)         { return 0, errLinux }
func again(error) bool                     { return false }
func readSocket(int, []byte) (int, error)  { return 0, errLinux }
func writeSocket(int, []byte) (int, error) { return 0, errLinux }
func closeSocket(int)                      {}
