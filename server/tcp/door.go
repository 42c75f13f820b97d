package tcp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/gnet/v2"
	"github.com/panjf2000/gnet/v2/pkg/logging"
	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// Config of the door. All fields must be set but those that say what their zero means.
type Config struct {
	Addr string // "host:port", port 0 for any free one
	Gate *gate.Gate
	Pool *tensor.Pool // memory of messages
	Log  *slog.Logger

	Loops          int           // event loops; 0: one per core
	Connections    int           // most at one time
	InFlight       int           // most requests of one connection in flight
	IdleTimeout    time.Duration // without a question or a waiting answer; 0: none
	MessageTimeout time.Duration // for a message to arrive once it has begun, and a second more per 16 KiB
	OutboundBytes  int           // unread answers after which a client that stands still is refused
	OutboundStall  time.Duration // and after which it is closed
	Limits         shiva.Limits
	Resync         bool // look for the next header after rubbish, instead of closing
	ResyncBytes    int  // how far

	Metrics *metrics.Door
}

// A Door listens and serves until Shutdown.
type Door struct{ d *door }

type door struct {
	gnet.BuiltinEventEngine

	cfg  Config
	gate *gate.Gate
	log  *slog.Logger

	engine gnet.Engine
	booted chan struct{} // closed when engine is set
	ended  chan struct{} // closed when gnet.Run has returned
	err    error         // what it returned; read after ended

	connections atomic.Int64
	opened      atomic.Uint64

	mu    sync.Mutex
	loops map[gnet.EventLoop]*loop
}

// Listen opens the door. It returns when clients can connect.
func Listen(cfg Config) (*Door, error) {
	d := &door{
		cfg: cfg, gate: cfg.Gate, log: cfg.Log,
		booted: make(chan struct{}), ended: make(chan struct{}),
		loops: make(map[gnet.EventLoop]*loop),
	}
	go func() { // joined by Shutdown
		defer close(d.ended)
		d.err = gnet.Run(d, "tcp://"+cfg.Addr,
			gnet.WithMulticore(cfg.Loops == 0),
			gnet.WithNumEventLoop(cfg.Loops),
			gnet.WithReuseAddr(true), // restart while old connections are in TIME_WAIT
			gnet.WithTCPKeepAlive(time.Minute),
			gnet.WithLoadBalancing(gnet.LeastConnections),
			gnet.WithTicker(true),
			gnet.WithLogLevel(logging.ErrorLevel),
			gnet.WithLogger(gnetLog{cfg.Log}),
		)
	}()
	select {
	case <-d.booted:
		return &Door{d}, nil
	case <-d.ended:
		// gnet hides why an address cannot be had behind the failure of its next call.
		if l, err := net.Listen("tcp", cfg.Addr); err != nil {
			d.err = err
		} else {
			l.Close()
		}
		return nil, fmt.Errorf("tcp: listen on %s: %w", cfg.Addr, d.err)
	}
}

// Addr is the address the door listens on.
func (d *Door) Addr() net.Addr {
	fd, err := d.d.engine.Dup()
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}
	case *unix.SockaddrInet6:
		return &net.TCPAddr{IP: sa.Addr[:], Port: sa.Port}
	}
	return nil
}

// Ended is closed when the event loops have ended: by Shutdown, or because they could not go on, in which
// case no client can be served any more and [Door.Err] may say why.
func (d *Door) Ended() <-chan struct{} { return d.d.ended }

// Err is why the event loops ended, if they were not told to. Valid once Ended is closed.
func (d *Door) Err() error { return d.d.err }

// Shutdown lets the waiting answers leave, ends every connection and stops the event loops. The requests
// inside must have been completed before (gate drained, scheduler drained), since their answers have
// nowhere to go afterwards. When ctx ends first, the connections that are left are cut.
func (d *Door) Shutdown(ctx context.Context) error {
	d.d.eachLoop((*loop).leave)
	wait := time.NewTicker(10 * time.Millisecond)
	defer wait.Stop()
	for d.d.connections.Load() > 0 && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-wait.C:
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := d.d.engine.Stop(stop); err != nil {
		return fmt.Errorf("tcp: stop: %w", err)
	}
	<-d.d.ended
	return ctx.Err()
}

// leave ends every session of the loop when its answers have left.
func (l *loop) leave() {
	l.begin()
	for i := len(l.sessions) - 1; i >= 0; i-- {
		s := l.sessions[i]
		s.leaveFor(metrics.ClosedDraining)
		s.leave()
	}
	l.end()
}

// The rest of the file is gnet's view.

func (d *door) OnBoot(engine gnet.Engine) gnet.Action {
	d.engine = engine
	close(d.booted)
	return gnet.None
}

func (d *door) OnOpen(c gnet.Conn) (out []byte, action gnet.Action) {
	d.cfg.Metrics.Opened()
	if n := d.connections.Add(1); n > int64(d.cfg.Connections) {
		return d.full(), gnet.Close
	}
	l := d.loopOf(c.EventLoop())
	l.now = time.Now()
	s := &session{loop: l, id: d.opened.Add(1), socket: &socketOf{c}, lastInput: l.now, progress: l.now}
	l.add(s)
	c.SetContext(s)
	return nil, gnet.None
}

// full is what a connection above the limit is told.
func (d *door) full() []byte {
	err := fmt.Errorf("%w: the server has as many connections as it may (tcp.connections = %d)", scheduler.ErrOverloaded, d.cfg.Connections)
	var m shiva.Message
	var l loop
	l.refusal(new(call), &m, err)
	out, _ := shiva.AppendMessage(nil, &m)
	return out
}

func (d *door) OnClose(c gnet.Conn, _ error) gnet.Action {
	d.connections.Add(-1)
	s, ok := c.Context().(*session)
	if !ok {
		d.cfg.Metrics.Closed(metrics.ClosedConnectionLimit)
		return gnet.None
	}
	defer s.rescue()
	s.closed()
	return gnet.None
}

func (d *door) OnTraffic(c gnet.Conn) gnet.Action {
	s, ok := c.Context().(*session)
	p, err := c.Next(-1)
	if !ok || err != nil {
		return gnet.Close
	}
	d.cfg.Metrics.Received(len(p))
	s.loop.begin()
	s.read(p)
	s.loop.end()
	return gnet.None
}

// OnTick runs on a goroutine of its own; the loops look at their clocks themselves.
func (d *door) OnTick() (time.Duration, gnet.Action) {
	d.eachLoop((*loop).tick)
	return 100 * time.Millisecond, gnet.None
}

func (d *door) eachLoop(f func(*loop)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for el, l := range d.loops {
		_ = el.Execute(context.Background(), task{l, f}) // fails only when the engine has ended
	}
}

func (d *door) loopOf(el gnet.EventLoop) *loop {
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.loops[el]
	if l == nil {
		l = &loop{door: d}
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

// read is traffic with a net below it: a panic costs this connection and no other, since gnet has none.
func (s *session) read(p []byte) {
	defer s.rescue()
	s.traffic(p)
}

// rescue, deferred, turns a panic into the end of the session.
func (s *session) rescue() {
	if r := recover(); r != nil {
		s.loop.door.log.Error("panic while serving a connection; closing it",
			"peer", s.socket.Peer(), "panic", r, "stack", string(debug.Stack()))
		if !s.gone {
			s.socket.Close()
		}
	}
}

// socketOf makes a gnet connection a socket.
type socketOf struct{ c gnet.Conn }

func (k *socketOf) Write(p []byte) error {
	_, err := k.c.Write(p)
	return err
}

func (k *socketOf) Writev(vecs [][]byte) error {
	_, err := k.c.Writev(vecs)
	return err
}

func (k *socketOf) Buffered() int { return k.c.OutboundBuffered() }

func (k *socketOf) ReadInto(p []byte) int {
	n, err := unix.Read(k.c.Fd(), p)
	if err != nil || n < 0 {
		return 0 // gnet's next read sees the same end or fault and closes the connection
	}
	return n
}

func (k *socketOf) CloseWrite() { _ = unix.Shutdown(k.c.Fd(), unix.SHUT_WR) }

func (k *socketOf) Close() { _ = k.c.EventLoop().Close(k.c) }

func (k *socketOf) Peer() string { return k.c.RemoteAddr().String() }

// gnetLog gives gnet's own complaints to our log. They concern single connections (resets and the like),
// so they are for debugging, but for an accept that failed: that ends the engine.
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
