package tcp

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A waiter tells sessions when their sockets have room again. gnet has no such event: it would copy
// bytes that a socket does not take into its own buffer, and the answers to a slow reader would lie
// in memory that no budget counts. So answers stay where they are, and one epoll set in addition to
// those of gnet's loops watches the sockets that were full. Waiting in the runtime's poller instead
// would cost a descriptor and a goroutine for each.
type waiter struct {
	stop  int // an event counter
	ended sync.WaitGroup

	mu       sync.Mutex
	epoll    int                 // -1: closed
	sessions map[uint64]*session // by their ids
}

func newWaiter() (*waiter, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("tcp: epoll: %w", err)
	}
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, stop, &unix.EpollEvent{Events: unix.EPOLLIN})
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("tcp: epoll: %w", err)
	}
	w := &waiter{epoll: epoll, stop: stop, sessions: make(map[uint64]*session)}
	w.ended.Go(func() { w.run(epoll) }) // ended by close, which waits for it
	return w, nil
}

// watch notifies the session's loop, until the socket is closed, whenever there is room after a
// write that found too little, and when the peer has closed the connection.
func (w *waiter) watch(fd int, s *session) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	// An event's 64 bits of data are the session's id: descriptors are reused, ids are not.
	e := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLET, Fd: int32(s.id), Pad: int32(s.id >> 32)}
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &e); err != nil {
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	w.sessions[s.id] = s
	return nil
}

// forget ends the reports to a session. The kernel removes the socket from the set when it is
// closed.
func (w *waiter) forget(s *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions, s.id)
}

func (w *waiter) run(epoll int) {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the set is closed
		}
		for _, e := range events[:max(n, 0)] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if id == 0 {
				return // told to stop
			}
			w.mu.Lock()
			s := w.sessions[id]
			w.mu.Unlock()
			if s != nil {
				what := hasRoom
				if e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0 {
					what = lostPeer
				}
				s.loop.postReport(s, what)
			}
		}
	}
}

// close ends all reports.
func (w *waiter) close() {
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	w.ended.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	unix.Close(w.stop)
	unix.Close(w.epoll)
	w.epoll = -1
}
