package tcp

import (
	"time"

	"golang.org/x/sys/unix"
)

// A connection most of whose requests are refused is read seldom (intake.Conn.Pause). gnet reads
// whatever epoll tells of, and cannot be kept from it. But epoll tells of no fewer bytes than the
// socket's SO_RCVLOWAT, except for the end: the loop sleeps while few come, and reads them itself
// after the pause, those of all such connections in one turn.

// lump is how many bytes of a connection that is paused wake its loop at once: what it may not have
// does not stay in the kernel, either.
const lump = 16 << 10

// pause has the connection read after a pause, by its event loop, which is where this is called.
func (k *conn) pause(pause time.Duration) {
	l := k.session.loop
	k.until = time.Now().Add(pause)
	if k.paused || k.detached {
		return
	}
	k.paused = true
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, lump)
	l.paused = append(l.paused, k)
	if len(l.paused) == 1 {
		el := k.gnet.EventLoop()
		k.engine.readAfter(pause, func(f func(*loop)) { execute(el, l, f) })
	}
}

// readAfter reads the paused connections of a loop when the pause is over, and those that are paused
// again after that pause. soon runs a function on the loop's event loop.
func (e *engine) readAfter(pause time.Duration, soon func(func(*loop))) {
	e.after(pause, func() {
		soon(func(l *loop) {
			if next := l.readPaused(); next > 0 {
				e.readAfter(next, soon)
			}
		})
	})
}

// readPaused is a turn with what has come on the connections whose pause is over. It returns when
// the next one's is; 0: none is paused any more.
func (l *loop) readPaused() (next time.Duration) {
	p := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(p)
	l.begin()
	still := l.paused[:0]
	for _, k := range l.paused {
		pause := k.until.Sub(l.now)
		if pause <= 0 {
			pause = k.readNow(p[:])
		}
		if k.session.gone || pause == 0 {
			k.paused = false
			continue
		}
		still = append(still, k)
		if next == 0 || pause < next {
			next = pause
		}
	}
	clear(l.paused[len(still):])
	l.paused = still
	l.end()
	return next
}

// readNow reads what has come during the pause, and returns how long the next one is; 0: there is
// none.
func (k *conn) readNow(p []byte) (pause time.Duration) {
	s := k.session
	if s.gone {
		return 0
	}
	if n := k.Read(p); n > 0 {
		s.loop.tally.Received(n)
		s.traffic(p[:n])
		pause = k.place.Pause()
	}
	if pause == 0 {
		_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	}
	k.until = s.loop.now.Add(pause)
	return pause
}
