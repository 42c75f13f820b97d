//go:build !unix

package load

import (
	"errors"
	"fmt"
	"net"
	"time"
)

// poller exists on Unix only.
type poller struct{}

var errUnix = fmt.Errorf("load: needs a Unix: %w", errors.ErrUnsupported)

func newPoller() (*poller, error)                      { return nil, errUnix }
func (*poller) close()                                 {}
func (*poller) sharpen() error                         { return errUnix }
func (*poller) add(int, int) error                     { return errUnix }
func (*poller) output(int, int, bool) error            { return errUnix }
func (*poller) wait(time.Duration) (int, error)        { return 0, errUnix }
func (*poller) event(int) (id int, input, output bool) { return 0, false, false }

func (*poller) readStamped(int, []byte) (int, time.Time, error) {
	return 0, time.Time{}, errUnix
}

func stampSocket(int) error                { return errUnix }
func detach(net.Conn) (int, error)         { return 0, errUnix }
func again(error) bool                     { return false }
func readSocket(int, []byte) (int, error)  { return 0, errUnix }
func writeSocket(int, []byte) (int, error) { return 0, errUnix }
func closeSocket(int)                      {}
