package tcp

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/intake"
)

// A connection whose requests are mostly refused is read at intervals (intake.Conn.Pause). gnet
// reads whenever epoll reports input, and cannot be told not to. But epoll reports no fewer bytes
// than the socket's SO_RCVLOWAT, except at the end. So the loop sleeps while few bytes arrive, and
// reads them itself after the pause, for all such connections in one turn.

// pause delays the next read of the connection. The event loop calls it.
func (k *conn) pause(pause time.Duration) {
	l := k.session.loop
	k.until = time.Now().Add(pause)
	if k.paused || k.detached {
		return
	}
	k.paused = true
	_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, intake.Lump)
	l.paused = append(l.paused, k)
	if len(l.paused) == 1 {
		el := k.gnet.EventLoop()
		k.engine.readAfter(pause, func(f func(*loop)) { execute(el, l, f) })
	}
}

// readAfter reads the paused connections of a loop after the pause, and those that are paused again
// after the next one. soon runs a function on the loop's event loop.
func (e *engine) readAfter(pause time.Duration, soon func(func(*loop))) {
	e.after(pause, func() {
		soon(func(l *loop) {
			if next := l.readPaused(); next > 0 {
				e.readAfter(next, soon)
			}
		})
	})
}

// readPaused takes a turn with the input of the connections whose pause is over. It returns the
// time until the next pause ends; 0: no connection is paused.
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

// readNow reads the input that arrived during the pause, and returns the length of the next pause;
// 0: none.
func (k *conn) readNow(p []byte) (pause time.Duration) {
	s := k.session
	if s.gone {
		return 0
	}
	if n := k.Read(p); n > 0 {
		s.loop.tally.Received(n)
		s.traffic(p[:n])
		pause = k.place.Pause(1)
	}
	if pause == 0 {
		_ = unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	}
	k.until = s.loop.now.Add(pause)
	return pause
}
