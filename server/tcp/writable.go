package tcp

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// A waiter tells sessions when their sockets take bytes again. gnet has no such event: what a
// socket does not take it would copy into a buffer of its own, and the answers to a client that
// reads slowly would lie in memory that no budget counts. So answers stay where they are, and
// one epoll set of ours, beside those of gnet's loops, watches the few sockets that are full.
type waiter struct {
	epoll, stop int // descriptors; stop is an event counter
	ended       sync.WaitGroup

	mu       sync.Mutex
	sessions map[uint64]waiting // by the session's id
}

// A waiting session is told once, or, when nobody else watches its socket, until it is forgotten.
type waiting struct {
	session *session
	alone   bool
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
	w := &waiter{epoll: epoll, stop: stop, sessions: make(map[uint64]waiting)}
	w.ended.Go(w.run) // until end, which waits for it
	return w, nil
}

// wait has the session's loop told, once, when fd takes bytes again. again says that it did so
// before.
func (w *waiter) wait(fd int, s *session, again bool) error {
	op := unix.EPOLL_CTL_ADD
	if again {
		op = unix.EPOLL_CTL_MOD
	}
	return w.add(op, fd, unix.EPOLLOUT|unix.EPOLLONESHOT, waiting{s, false})
}

// watch has the session's loop told whenever fd takes bytes again, and when its peer is gone.
func (w *waiter) watch(fd int, s *session) error {
	return w.add(unix.EPOLL_CTL_ADD, fd, unix.EPOLLOUT|unix.EPOLLET, waiting{s, true})
}

func (w *waiter) add(op, fd int, events uint32, entry waiting) error {
	s := entry.session
	w.mu.Lock()
	w.sessions[s.id] = entry
	w.mu.Unlock()
	// An event's 64 bits of data are the session's id: descriptors are used again, ids are not.
	e := unix.EpollEvent{Events: events, Fd: int32(s.id), Pad: int32(s.id >> 32)}
	if err := unix.EpollCtl(w.epoll, op, fd, &e); err != nil {
		w.forget(s)
		return fmt.Errorf("tcp: epoll: %w", err)
	}
	return nil
}

// drop ends the watching of a descriptor that is closed while its socket is not.
func (w *waiter) drop(fd int) { _ = unix.EpollCtl(w.epoll, unix.EPOLL_CTL_DEL, fd, nil) }

// forget ends the waiting of a session that is closed; closing its socket takes it out of the set.
func (w *waiter) forget(s *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions, s.id)
}

func (w *waiter) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(w.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // the set is closed
		}
		for _, e := range events[:max(n, 0)] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if id == 0 {
				return // told to stop
			}
			w.mu.Lock()
			entry := w.sessions[id]
			if !entry.alone {
				delete(w.sessions, id)
			}
			w.mu.Unlock()
			if s := entry.session; s != nil {
				s.loop.postWritable(s, entry.alone && e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0)
			}
		}
	}
}

// end stops telling; close, after the last wait, gives the descriptors back.
func (w *waiter) end() {
	_, _ = unix.Write(w.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	w.ended.Wait()
}

func (w *waiter) close() {
	unix.Close(w.stop)
	unix.Close(w.epoll)
}
