package tcp

import (
	"golang.org/x/sys/unix"
)

// A detached socket is that of a client that has ended its direction and still gets answers.
// gnet closes a connection when it has read its end, and has no way to be kept from it; so the
// session goes on with a duplicate of the descriptor, which gnet does not know, and only the
// waiter watches it: for room, and for the peer being gone.
type detached struct {
	fd      int
	door    *Door
	session *session
	peer    string
}

// Detach is called in OnClose, before gnet closes its descriptor.
func (k *socketOf) Detach() (socket, error) {
	fd, err := unix.FcntlInt(uintptr(k.c.Fd()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	w := k.door.waiter
	if k.awaited {
		w.drop(k.c.Fd())
	}
	if err := w.watch(fd, k.session); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &detached{fd: fd, door: k.door, session: k.session, peer: k.Peer()}, nil
}

func (k *detached) Write(vecs [][]byte) (int, error) { return write(k.fd, vecs) }

// AwaitRoom has nothing to do: the waiter says whenever there is room again.
func (k *detached) AwaitRoom() error { return nil }

func (k *detached) Held() int               { return held(k.fd) }
func (k *detached) ReadInto([]byte) int     { return 0 }
func (k *detached) Acknowledge()            {}
func (k *detached) Detach() (socket, error) { return k, nil }
func (k *detached) CloseWrite()             { _ = unix.Shutdown(k.fd, unix.SHUT_WR) }
func (k *detached) Peer() string            { return k.peer }

func (k *detached) Close() {
	k.door.waiter.forget(k.session)
	unix.Close(k.fd)
	k.door.leaves(k.session.host)
	k.session.closed()
}
