package tcp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	gneterrors "github.com/panjf2000/gnet/v2/pkg/errors"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/hosts"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of the door. All fields must be set but those that say what their zero means.
type Config struct {
	Addr string // "host:port", port 0 for any free one
	Gate *gate.Gate
	// Describe answers the paths of the Predict Protocol that are not inference: predict's
	// function of that name. nil: there are none.
	Describe func(path string, onlyReady bool) (answer []byte, ok bool, err error)
	Pool     *tensor.Pool // memory of messages
	Log      *slog.Logger

	Metrics *metrics.Door
	Loops   int // event loops; 0: one per core

	Settings // to begin with
}

// Settings of the door are those that can change while it is open.
type Settings struct {
	Connections    int           // most at one time
	Hosts          hosts.Limit   // and of one host
	InFlight       int           // most requests of one connection in flight
	IdleTimeout    time.Duration // without a question or a waiting answer; 0: none
	MessageTimeout time.Duration // for a message to arrive once it has begun, and a second more per 16 KiB
	OutboundBytes  int           // of unread answers, beyond which requests wait; see gate.Outbox
	OutboundStall  time.Duration // a client that takes none of them for this long is closed
	Limits         shiva.Limits
	Resync         bool // look for the next header after rubbish, instead of closing
	ResyncBytes    int  // how far
}

// A Door listens and serves until Shutdown.
type Door struct {
	gnet.BuiltinEventEngine

	// Set once.
	gate     *gate.Gate
	describe func(path string, onlyReady bool) (answer []byte, ok bool, err error) // see Config.Describe
	pool     *tensor.Pool
	metrics  *metrics.Door
	log      *slog.Logger
	listener net.Listener
	engine   *gnet.Client // event loops; gnet calls them a client when somebody else accepts
	waiter   *waiter

	stopping  chan struct{}  // closed when Shutdown begins
	accepting sync.WaitGroup // the goroutine that accepts

	settings atomic.Pointer[Settings]

	hosts       hosts.Count   // of those that were let in
	connections atomic.Int64  // let in and not closed
	opened      atomic.Uint64 // let in, ever
	refused     atomic.Int32  // told so, and not closed yet

	mu    sync.Mutex
	loops map[gnet.EventLoop]*loop
}

// Listen opens the door. It returns when clients can connect.
//
// The door accepts by itself and hands connections to gnet's event loops. gnet's own listener
// ends the engine, and with it all connections, when an accept finds no descriptor left; and
// its accepting outruns its closing, so that a limit on connections cannot keep that from
// happening.
func Listen(cfg Config) (*Door, error) {
	l, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: %w", err)
	}
	d := &Door{
		gate: cfg.Gate, describe: cfg.Describe, pool: cfg.Pool, metrics: cfg.Metrics, log: cfg.Log, listener: l,
		stopping: make(chan struct{}),
		loops:    make(map[gnet.EventLoop]*loop),
	}
	d.Configure(cfg.Settings)
	if d.waiter, err = newWaiter(); err != nil {
		l.Close()
		return nil, err
	}
	d.engine, err = gnet.NewClient(d,
		gnet.WithMulticore(cfg.Loops == 0),
		gnet.WithNumEventLoop(cfg.Loops),
		gnet.WithTCPKeepAlive(time.Minute),
		gnet.WithTicker(true),
		gnet.WithLogLevel(logging.ErrorLevel),
		gnet.WithLogger(gnetLog{cfg.Log}),
	)
	if err == nil {
		err = d.engine.Start()
	}
	if err != nil {
		l.Close()
		d.waiter.end()
		d.waiter.close()
		return nil, fmt.Errorf("tcp: event loops: %w", err)
	}
	d.accepting.Go(d.accept) // ends when Shutdown closes the listener, and Shutdown waits for it
	return d, nil
}

// Addr is the address the door listens on.
func (d *Door) Addr() net.Addr { return d.listener.Addr() }

// Configure returns the door other settings. Those about connections hold for the next that
// comes, those about messages for the next that begins on any connection, and clocks from the
// next look at them on. Any goroutine may call it.
func (d *Door) Configure(s Settings) { d.settings.Store(&s) }

// Settings are those that hold.
func (d *Door) Settings() Settings { return *d.settings.Load() }

// Shutdown lets the waiting answers leave, ends every connection and stops the event loops. The
// requests inside must have been completed before (gate drained, scheduler drained), since
// their answers have nowhere to go afterwards. A client that is still asking is answered (by a
// gate that drains: ErrDraining) until it has been quiet for a moment, or for a second at most.
// When ctx ends first, the connections that are left are cut, and it returns the context's
// error.
func (d *Door) Shutdown(ctx context.Context) error {
	const longest = time.Second
	close(d.stopping)
	d.listener.Close()
	d.accepting.Wait()
	began := time.Now()
	wait := time.NewTicker(5 * time.Millisecond)
	defer wait.Stop()
	for d.connections.Load() > 0 && ctx.Err() == nil {
		d.eachLoop(func(l *loop) { l.leave(time.Since(began) >= longest) })
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	d.waiter.end()
	if err := d.engine.Stop(); err != nil && !errors.Is(err, gneterrors.ErrEngineShutdown) {
		return fmt.Errorf("tcp: stop: %w", err)
	}
	d.waiter.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range d.loops {
		l.turns.Lock() // a worker may still be in the last one
		for i := len(l.sessions) - 1; i >= 0; i-- {
			l.sessions[i].close() // which gnet does not know any more
		}
		l.spares.Release()
		l.turns.Unlock()
	}
	return ctx.Err()
}

// accept lets connections in. When none can be accepted, because the process has no descriptor
// left, it tries again after a growing pause: those inside are served meanwhile.
func (d *Door) accept() {
	const first, longest = 5 * time.Millisecond, time.Second
	pause := first
	for {
		c, err := d.listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			d.log.Warn("cannot accept a connection", "error", err, "again in", pause)
			again := time.NewTimer(pause)
			select {
			case <-d.stopping:
				again.Stop()
				return
			case <-again.C:
			}
			pause = min(2*pause, longest)
			continue
		}
		pause = first
		host, limits := hosts.Of(c.RemoteAddr()), d.settings.Load()
		if !d.hosts.Enter(host, limits.Hosts) {
			d.refuse(c, metrics.ClosedAddressLimit, fmt.Errorf("%w: your address has as many connections as one may (tcp.connections_per_address = %d)", scheduler.ErrOverloaded, limits.Hosts.Most))
			continue
		}
		if d.connections.Add(1) > int64(limits.Connections) {
			d.leaves(host)
			d.refuse(c, metrics.ClosedConnectionLimit, fmt.Errorf("%w: the server has as many connections as it may (tcp.connections = %d)", scheduler.ErrOverloaded, limits.Connections))
			continue
		}
		in := &ticket{host: host}
		if _, err := d.engine.EnrollContext(c, in); err != nil || !in.opened {
			d.leaves(host) // gnet has closed it
			d.log.Debug("a connection was lost while it was let in", "error", err)
		}
	}
}

// A ticket learns whether a connection was opened: gnet does not say when it could not watch it.
type ticket struct {
	host   netip.Addr
	opened bool
}

// leaves takes a connection off those that were let in.
func (d *Door) leaves(host netip.Addr) {
	d.connections.Add(-1)
	d.hosts.Leave(host)
}

// refuse tells a connection above a limit why it is closed.
func (d *Door) refuse(c net.Conn, why metrics.Closed, err error) {
	const (
		lingering = 16 // at most, so many descriptors are set aside for it
		linger    = time.Second
	)
	d.metrics.Opened()
	d.metrics.Closed(why)
	var m shiva.Message
	new(loop).refusal(new(call), &m, err)
	if answer, err := shiva.AppendMessage(nil, &m); err == nil {
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)) // an empty socket takes it at once
		_, _ = c.Write(answer)
	}
	// To close at once would reset the connection if the client has sent something, and the
	// answer would be lost.
	tcp, ok := c.(*net.TCPConn)
	if n := d.refused.Add(1); !ok || n > lingering || tcp.CloseWrite() != nil {
		d.refused.Add(-1)
		c.Close()
		return
	}
	time.AfterFunc(linger, func() {
		c.Close()
		d.refused.Add(-1)
	})
}

// leave ends every session of the loop whose client is quiet, or every one, when its answers
// have left. What a client has sent before it could know that the server goes is not to be
// lost.
func (l *loop) leave(all bool) {
	const quiet = 200 * time.Millisecond
	l.begin()
	for i := len(l.sessions) - 1; i >= 0; i-- {
		if s := l.sessions[i]; all || l.now.Sub(s.lastInput) >= quiet && l.now.Sub(s.progress) >= quiet {
			s.goodbye()
		}
	}
	l.end()
}

// The rest of the file is gnet's view.

// OnOpen makes a session of a connection.
func (d *Door) OnOpen(c gnet.Conn) (out []byte, action gnet.Action) {
	d.metrics.Opened()
	in := c.Context().(*ticket)
	in.opened = true
	l := d.loopOf(c.EventLoop())
	l.turns.Lock()
	defer l.turns.Unlock()
	l.look()
	s := l.newSession(d.opened.Add(1))
	s.host = in.host
	s.socket = &socketOf{c: c, door: d, session: s}
	l.add(s)
	c.SetContext(s)
	return nil, gnet.None
}

// OnClose ends the session, or leaves it to a socket of its own.
func (d *Door) OnClose(c gnet.Conn, err error) gnet.Action {
	s, ok := c.Context().(*session)
	if !ok {
		d.leaves(c.Context().(*ticket).host)
		return gnet.None
	}
	s.loop.begin() // first: a turn elsewhere may be about to wait for the socket
	defer s.loop.end()
	s.hangUp(err)
	if s.gone {
		d.waiter.forget(s)
		d.leaves(s.host)
	}
	return gnet.None
}

// OnTraffic is a turn of the loop with input.
func (d *Door) OnTraffic(c gnet.Conn) gnet.Action {
	s, ok := c.Context().(*session)
	p, err := c.Next(-1)
	if !ok || err != nil {
		return gnet.Close
	}
	s.loop.input(s, p)
	return gnet.None
}

// OnTick runs on a goroutine of its own; the loops look at their clocks themselves.
func (d *Door) OnTick() (time.Duration, gnet.Action) {
	d.eachLoop((*loop).tick)
	return 200 * time.Millisecond, gnet.None
}

func (d *Door) eachLoop(f func(*loop)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for el, l := range d.loops {
		_ = el.Execute(context.Background(), task{l, f}) // fails only when the engine has ended
	}
}

func (d *Door) loopOf(el gnet.EventLoop) *loop {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.loops[el]
	if l == nil {
		l = &loop{door: d, tally: d.metrics.Tally()}
		turn := task{l, (*loop).turn}
		l.wake = func() { _ = el.Execute(context.Background(), turn) }
		d.loops[el] = l
	}
	return l
}

// A task is something a loop shall do by itself.
type task struct {
	loop *loop
	do   func(*loop)
}

func (t task) Run(context.Context) error {
	t.do(t.loop)
	return nil
}

// read is traffic with a net below it: a panic costs this connection and no other, since gnet
// has none.
func (s *session) read(p []byte) {
	defer s.rescue()
	s.traffic(p)
}

// rescue, deferred, turns a panic into the end of the session.
func (s *session) rescue() {
	if r := recover(); r != nil {
		s.loop.door.log.Error("panic while serving a connection; closing it",
			"peer", s.socket.Peer(), "panic", r, "stack", string(debug.Stack()))
		if !s.unsent.kept { // what was being encoded is worth nothing now
			s.unsent = outbound{}
			s.loop.out, s.loop.vecs = nil, nil
		}
		if !s.gone {
			s.close()
		}
	}
}

// socketOf makes a gnet connection a socket. It reads and writes the descriptor itself, which
// is legal as long as gnet has not closed it: gnet's own writing copies what the socket does
// not take.
type socketOf struct {
	c       gnet.Conn
	door    *Door
	session *session
	awaited bool // the waiter knows the descriptor
}

func (k *socketOf) Write(vecs [][]byte) (int, error) { return write(k.c.Fd(), vecs) }

func write(fd int, vecs [][]byte) (n int, err error) {
	if len(vecs) == 1 {
		n, err = unix.Write(fd, vecs[0])
	} else {
		n, err = unix.Writev(fd, vecs)
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, nil
	}
	return max(n, 0), err
}

func (k *socketOf) AwaitRoom() error {
	again := k.awaited
	k.awaited = true
	return k.door.waiter.wait(k.c.Fd(), k.session, again)
}

func (k *socketOf) Held() int { return held(k.c.Fd()) }

func held(fd int) int {
	n, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}

func (k *socketOf) ReadInto(p []byte) int {
	n, err := unix.Read(k.c.Fd(), p)
	if err != nil || n < 0 {
		return 0 // gnet's next read sees the same end or fault and closes the connection
	}
	return n
}

// Acknowledge is a request to the kernel for this moment; it goes back to delaying by itself.
func (k *socketOf) Acknowledge() {
	_ = unix.SetsockoptInt(k.c.Fd(), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
}

func (k *socketOf) CloseWrite() { _ = unix.Shutdown(k.c.Fd(), unix.SHUT_WR) }

// Close has gnet close the connection on its loop. Until OnClose, which waits for its turn, has
// returned, the descriptor stays what it is.
func (k *socketOf) Close() { _ = k.c.Close() }

func (k *socketOf) Peer() string { return k.c.RemoteAddr().String() }

// gnetLog gives gnet's own complaints to our log. They concern single connections (resets and
// the like), so they are for debugging.
type gnetLog struct{ log *slog.Logger }

func (g gnetLog) Debugf(string, ...any) {}
func (g gnetLog) Infof(string, ...any)  {}
func (g gnetLog) Warnf(f string, a ...any) {
	g.log.Debug("gnet: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}
func (g gnetLog) Errorf(f string, a ...any) {
	g.log.Debug("gnet: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}
func (g gnetLog) Fatalf(f string, a ...any) {
	g.log.Error("gnet: " + strings.TrimSpace(fmt.Sprintf(f, a...)))
}
