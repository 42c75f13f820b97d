//go:build unix && (!linux || poll)

package load

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// poller waits for sockets with poll(2), which every Unix has. It is exact to a tenth of a
// millisecond, and looks at all connections each time. The build tag poll selects it on Linux, for
// tests.
type poller struct {
	fds   []unix.PollFd // by id
	ready []int         // ids
}

// nap is the longest sleep without a look at the sockets, in the last millisecond of a wait.
const nap = 100 * time.Microsecond

func newPoller() (*poller, error) { return &poller{}, nil }
func (*poller) close()            {}
func (*poller) sharpen() error    { return nil }

// add watches fd for input; its events carry id. Ids are counted from 0.
func (p *poller) add(fd, id int) error {
	if id != len(p.fds) {
		return fmt.Errorf("load: connection %d after %d others", id, len(p.fds))
	}
	p.fds = append(p.fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	return nil
}

// output sets whether fd is also watched for room to write.
func (p *poller) output(_, id int, on bool) error {
	p.fds[id].Events = unix.POLLIN
	if on {
		p.fds[id].Events |= unix.POLLOUT
	}
	return nil
}

// wait returns the number of ready events, 0 after d at the latest, or earlier.
func (p *poller) wait(d time.Duration) (int, error) {
	p.ready = p.ready[:0]
	n, err := unix.Poll(p.fds, int(max(d, 0).Milliseconds()))
	switch {
	case err == unix.EINTR:
		return 0, nil
	case err != nil:
		return 0, os.NewSyscallError("poll", err)
	case n == 0 && d > 0 && d < time.Millisecond:
		time.Sleep(min(d, nap))
	}
	for id := range p.fds {
		if p.fds[id].Revents != 0 {
			p.ready = append(p.ready, id)
		}
	}
	return len(p.ready), nil
}

// event returns the id of ready event i, and its readiness. An error or the end counts as input:
// the read returns it.
func (p *poller) event(i int) (id int, input, output bool) {
	id = p.ready[i]
	got := p.fds[id].Revents
	return id, got&^unix.POLLOUT != 0, got&unix.POLLOUT != 0
}

var errStamps = fmt.Errorf("load: deadlines are measured by the kernel's stamps, which Linux has: %w",
	errors.ErrUnsupported)

func stampSocket(int) error { return errStamps }

func (*poller) readStamped(int, []byte) (int, time.Time, error) { return 0, time.Time{}, errStamps }
