//go:build linux && !poll

package load

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller waits for sockets. Go's own poller rounds its timers up to a millisecond when nothing
// else wakes it, ten times the latencies to be measured; epoll_pwait2 (Linux 5.11) takes
// nanoseconds.
type poller struct {
	fd     int
	events [128]unix.EpollEvent

	// For readStamped: passed to the kernel by address, so as local variables they would be
	// allocated each time.
	message unix.Msghdr
	vector  unix.Iovec
	control [64]byte
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	return &poller{fd: fd}, nil
}

func (p *poller) close() { unix.Close(p.fd) }

// sharpen makes this thread's timers exact; otherwise the kernel may be 50 µs late, to save
// wake-ups.
func (p *poller) sharpen() error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0))
}

// add watches fd for input; its events carry id.
func (p *poller) add(fd, id int) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(id)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &e))
}

// output sets whether fd is also watched for room to write.
func (p *poller) output(fd, id int, on bool) error {
	e := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(id)}
	if on {
		e.Events |= unix.EPOLLOUT
	}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_MOD, fd, &e))
}

// wait returns the number of ready events, 0 after d.
func (p *poller) wait(d time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(max(d, 0)))
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
		uintptr(len(p.events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
	switch errno {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, nil
	default:
		return 0, os.NewSyscallError("epoll_pwait2", errno)
	}
}

// event returns the id of ready event i, and its readiness. An error or the end counts as input:
// the read returns it.
func (p *poller) event(i int) (id int, input, output bool) {
	e := &p.events[i]
	return int(e.Fd), e.Events&^unix.EPOLLOUT != 0, e.Events&unix.EPOLLOUT != 0
}

// stampSocket makes the kernel timestamp each segment on arrival. On the loopback device that is
// during the sender's write: the stamp is the sender's time, not that of a reader that waits for a
// core.
func stampSocket(fd int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1))
}

// readStamped reads from a stamped socket, and returns when the last of the bytes arrived. Bytes
// from before the kernel began to stamp, a moment after the first stampSocket, count as arriving
// when they are read.
func (p *poller) readStamped(fd int, b []byte) (int, time.Time, error) {
	p.vector.Base = &b[0]
	p.vector.SetLen(len(b))
	p.message = unix.Msghdr{Iov: &p.vector, Control: &p.control[0]}
	p.message.SetIovlen(1)
	p.message.SetControllen(len(p.control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&p.message)), 0)
	if errno != 0 {
		return 0, time.Time{}, errno
	}
	if n == 0 {
		return 0, time.Time{}, nil
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&p.control))
	at := (*unix.Timespec)(unsafe.Pointer(&p.control[unix.CmsgLen(0)]))
	if int(p.message.Controllen) < unix.CmsgLen(int(unsafe.Sizeof(*at))) || h.Level != unix.SOL_SOCKET ||
		h.Type != unix.SO_TIMESTAMPNS {
		return int(n), time.Now(), nil
	}
	return int(n), time.Unix(at.Unix()), nil
}
