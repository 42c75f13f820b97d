package tcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/panjf2000/gnet/v2"
	gneterrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/listen"
)

// An engine runs the door's loops on gnet, which tells them which sockets have bytes to read. It
// reads and writes the descriptors itself: gnet would copy bytes that a socket does not take into
// memory that no budget counts. doc.go has the measurements, and gnet's other traps that
// this file and writable.go avoid.
type engine struct {
	gnet.BuiltinEventEngine
	door   *Door
	client *gnet.Client // gnet's name for event loops that do not accept connections themselves
	waiter *waiter

	mu      sync.Mutex
	stopped bool
	loops   map[gnet.EventLoop]*loop
	moved   sync.WaitGroup // connections that gnet no longer has, see conn.move
}

// newEngine starts the given number of event loops; 0: DefaultLoops.
func newEngine(d *Door, loops int) (*engine, error) {
	w, err := newWaiter()
	if err != nil {
		return nil, err
	}
	e := &engine{door: d, waiter: w, loops: make(map[gnet.EventLoop]*loop)}
	e.client, err = gnet.NewClient(e,
		gnet.WithNumEventLoop(cmp.Or(loops, DefaultLoops(capacity.Processors()))),
		gnet.WithTCPKeepAlive(time.Minute),
		gnet.WithLogLevel(logging.ErrorLevel),
		gnet.WithLogger(gnetLog{d.log}),
	)
	if err == nil {
		err = e.client.Start()
	}
	if err != nil {
		w.close()
		return nil, fmt.Errorf("tcp: event loops: %w", err)
	}
	return e, nil
}

// DefaultLoops returns the default number of event loops for a number of processors: one for two.
// The other half is for the work that they wait for, such as that of containers. With one loop per
// core, and all of them busy, each answer waits for a core for one more thread, and requests arrive
// in more and smaller turns: on two cores, at 62,000 requests a second, the median latency was a
// fifth higher.
func DefaultLoops(processors int) int { return max(1, processors/2) }

// stop ends the event loops and the remaining connections.
func (e *engine) stop() error {
	e.waiter.close() // first: a loop that has ended must not be woken
	e.stopMoved()
	err := e.client.Stop()
	if errors.Is(err, gneterrors.ErrEngineShutdown) {
		err = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.loops {
		l.turns.Lock() // another goroutine may still be in the last turn
		for i := len(l.sessions) - 1; i >= 0; i-- {
			l.sessions[i].close() // gnet has forgotten its descriptor
		}
		l.spares.Release()
		l.turns.Unlock()
	}
	return err
}

// stopMoved ends the connections that gnet no longer has, and moves none from now on.
func (e *engine) stopMoved() {
	e.mu.Lock()
	e.stopped = true
	loops := slices.Collect(maps.Values(e.loops))
	e.mu.Unlock()
	for _, l := range loops {
		l.begin()
		for _, s := range l.sessions {
			if _, moved := s.transport.(*socket); moved {
				s.close()
			}
		}
		l.end()
	}
	e.moved.Wait()
}

// each schedules f on every loop's event loop.
func (e *engine) each(f func(*loop)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return
	}
	for el, l := range e.loops {
		execute(el, l, f)
	}
}

func (e *engine) loopOf(el gnet.EventLoop) *loop {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.loops[el]
	if l == nil {
		l = newLoop(e.door, func() { execute(el, l, (*loop).turn) }, func() {
			e.after(tick, func() { execute(el, l, (*loop).tick) })
		})
		e.loops[el] = l
	}
	return l
}

// execute schedules f on the event loop.
func execute(el gnet.EventLoop, l *loop, f func(*loop)) {
	// It fails only when the engine has ended.
	_ = el.Execute(context.Background(), gnet.RunnableFunc(func(context.Context) error {
		f(l)
		return nil
	}))
}

// enroll hands a connection to one of the event loops.
func (e *engine) enroll(in *listen.Conn) {
	k := &conn{engine: e, place: in}
	// gnet closes it, and continues with a duplicate.
	if _, err := e.client.EnrollContext(in.HandOver(), k); err != nil || k.session == nil {
		e.door.log.Debug("a connection failed while it was accepted", "peer", k.Peer(), "error", err)
		in.Leave()
	}
}

// OnOpen makes a session for a connection.
func (e *engine) OnOpen(c gnet.Conn) (out []byte, action gnet.Action) {
	k, l := c.Context().(*conn), e.loopOf(c.EventLoop())
	k.gnet, k.fd = c, c.Fd()
	l.turns.Lock()
	defer l.turns.Unlock()
	l.refresh()
	k.session = l.newSession(e.door.opened.Add(1), k)
	k.session.conn = k.place
	return nil, gnet.None
}

// OnClose is called when the peer has ended its direction or the connection, when the server has
// closed the connection, and when the client must not be read for a while.
func (e *engine) OnClose(c gnet.Conn, err error) gnet.Action {
	k := c.Context().(*conn)
	l := k.session.loop
	l.begin() // first: a turn on another goroutine may be about to write to the socket
	defer l.end()
	switch {
	case k.rest > 0 && k.session.phase < ending && k.move():
	case errors.Is(err, io.EOF) && k.session.due() && k.detach():
		k.session.hangUp()
	default:
		k.closed()
	}
	return gnet.None
}

// OnTraffic takes a turn of the loop with input.
func (e *engine) OnTraffic(c gnet.Conn) gnet.Action {
	p, err := c.Next(-1)
	if err != nil {
		return gnet.Close
	}
	k := c.Context().(*conn)
	k.session.loop.input(k.session, p)
	if k.rest > 0 {
		return gnet.Close
	}
	return gnet.None
}

// after calls f after d, unless the engine has ended: its loops must not be woken any more then.
func (e *engine) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.stopped {
			f()
		}
	})
}

// A conn is a transport on the socket of a gnet connection. gnet closes a connection when it reads
// its end, and cannot be told not to. A client that has ended its direction may still be owed
// answers. Then the conn is detached: it continues with a duplicate of the descriptor, which gnet
// does not know. Only the waiter watches the duplicate, for room and for a peer that closes the
// connection.
type conn struct {
	engine   *engine
	place    *listen.Conn // its place in the door's limits
	session  *session
	gnet     gnet.Conn
	fd       int
	watched  bool          // the waiter watches it
	detached bool          // fd is the duplicate
	rest     time.Duration // before the next read; 0: none
}

// detach is called in OnClose, before gnet closes its descriptor.
func (k *conn) detach() bool {
	fd, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		k.fd, k.detached = fd, true
		err = k.watch()
	}
	if err != nil {
		k.engine.door.log.Debug("a client that has closed its sending side gets no more answers", "peer", k.Peer(), "error", err)
	}
	return err == nil
}

// move continues on the other transport for sockets, which can wait before it reads. gnet reads
// whenever a socket has bytes, and cannot be told not to. The connection stays there, with the
// session in its loop: a client that was over its rate once may be so again. It is called in
// OnClose, before gnet closes its descriptor.
func (k *conn) move() bool {
	to, err := k.duplicate()
	if err != nil {
		k.engine.door.log.Debug("closing a connection that is over its rate", "peer", k.Peer(), "error", err)
		return false
	}
	e, s := k.engine, k.session
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		to.place.Conn.Close()
		return false
	}
	e.waiter.forget(s)
	to.session, to.rest, s.transport = s, k.rest, to
	s.queue()          // for the room that the waiter does not report any more
	e.moved.Go(to.run) // ends with the session; stop waits for it
	return true
}

// duplicate returns the other transport, on a descriptor of its own.
func (k *conn) duplicate() (*socket, error) {
	fd, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	c, err := net.FileConn(f) // duplicates it once more
	if err != nil {
		return nil, err
	}
	k.place.TakeBack(c)
	return newSocket(k.place)
}

// watch asks the waiter to report room from now on. The duplicate is the same open file: it stays
// watched when the descriptor that the waiter was given is closed.
func (k *conn) watch() error {
	if k.watched {
		return nil
	}
	k.watched = true
	return k.engine.waiter.watch(k.fd, k.session)
}

// closed ends the session and frees its place.
func (k *conn) closed() {
	k.engine.waiter.forget(k.session)
	k.session.closed()
	k.place.Because(k.session.reason)
	k.place.Leave()
}

func (k *conn) Write(vecs [][]byte) (int, error) {
	n, err := write(k.fd, vecs)
	if err != nil || n == size(vecs) {
		return n, err
	}
	return n, k.watch()
}

// write writes as much as the descriptor has room for.
func write(fd int, vecs [][]byte) (n int, err error) {
	err = unix.EINTR
	for err == unix.EINTR {
		if len(vecs) == 1 {
			n, err = unix.Write(fd, vecs[0])
		} else {
			n, err = unix.Writev(fd, vecs)
		}
	}
	if err == unix.EAGAIN {
		err = nil
	}
	return max(n, 0), err
}

// peerEnded reports whether a write failed after the peer had ended its direction.
func peerEnded(err error) bool { return errors.Is(err, unix.EPIPE) }

// size is the number of bytes in vecs.
func size(vecs [][]byte) (n int) {
	for _, v := range vecs {
		n += len(v)
	}
	return n
}

func (k *conn) Read(p []byte) int {
	if k.detached {
		return 0
	}
	n, _ := unix.Read(k.fd, p)
	return max(n, 0) // gnet's next read finds the same end or error, and closes the connection
}

func (k *conn) Unread() int { return queued(k.fd, unix.SIOCINQ) }

func (k *conn) Unacknowledged() int { return queued(k.fd, unix.SIOCOUTQ) }

// queued returns how many bytes the kernel holds for a socket, in the direction that the request
// names.
func queued(fd int, request uint) int {
	n, _ := unix.IoctlGetInt(fd, request)
	return n
}

func (k *conn) Acknowledge() { acknowledge(k.fd) }

func (k *conn) Rest(d time.Duration) { k.rest = d }

// acknowledge asks the kernel to acknowledge now; the kernel returns to delaying by itself.
func acknowledge(fd int) { _ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) }

func (k *conn) CloseWrite() { _ = unix.Shutdown(k.fd, unix.SHUT_WR) }

// Close tells gnet to close the connection on its loop. The descriptor stays valid until OnClose,
// which waits for its turn, has returned.
func (k *conn) Close() {
	if !k.detached {
		_ = k.gnet.Close()
		return
	}
	unix.Close(k.fd)
	k.closed()
}

func (k *conn) Peer() string { return k.place.RemoteAddr().String() }

// gnetLog passes gnet's warnings and errors to the server's log. They concern single connections
// (resets and the like), so they are debug messages.
type gnetLog struct{ log *slog.Logger }

func (g gnetLog) Debugf(string, ...any)     {}
func (g gnetLog) Infof(string, ...any)      {}
func (g gnetLog) Warnf(f string, a ...any)  { g.write(slog.LevelDebug, f, a) }
func (g gnetLog) Errorf(f string, a ...any) { g.write(slog.LevelDebug, f, a) }
func (g gnetLog) Fatalf(f string, a ...any) { g.write(slog.LevelError, f, a) }

func (g gnetLog) write(level slog.Level, f string, a []any) {
	g.log.Log(context.Background(), level, "gnet: "+strings.TrimSpace(fmt.Sprintf(f, a...)))
}
