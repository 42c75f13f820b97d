package grpc

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/metrics"
)

// A listener is the door's as grpc-go sees it. Connections above a limit are closed without an
// answer: a client's library tries again later, and no descriptor is taken meanwhile.
type listener struct {
	*intake.Listener
	stopping <-chan struct{}
}

// Accept waits for a connection within the limits.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &socket{Conn: c, stopping: l.stopping, gone: make(chan struct{})}, nil
}

// A socket is a connection as the network sees it.
type socket struct {
	*intake.Conn
	stopping <-chan struct{}            // closed when the door closes
	frames   atomic.Pointer[uncanceled] // what grpc-go writes goes through it, once HTTP/2 has begun
	conn     atomic.Pointer[conn]       // likewise
	moved    atomic.Int64               // when the network last took something of an answer, in Unix nanoseconds

	ended  atomic.Bool // the client has hung up
	closed atomic.Bool
	gone   chan struct{} // closed with it
}

// An address is a peer's, from which a connection of grpc-go's leads back to its socket.
type address struct {
	net.Addr
	socket *socket
}

func (s *socket) RemoteAddr() net.Addr { return &address{s.Conn.RemoteAddr(), s} }

// end closes the connection and notes the reason.
func (s *socket) end(why metrics.Closed) {
	s.Because(why)
	if c := s.conn.Load(); c != nil {
		c.close() // before that leaves room, and before it is written
	}
	if f := s.frames.Load(); f != nil {
		f.goAway()
	}
	s.Close()
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		s.ended.Store(true)
	}
	return n, err
}

func (s *socket) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		close(s.gone)
		if c := s.conn.Load(); c != nil {
			c.close()
		}
		s.Because(s.reason())
	}
	return s.Conn.Close()
}

// reason is why grpc-go closes the connection, as far as that shows: it passes no reason on.
func (s *socket) reason() metrics.Closed {
	select {
	case <-s.stopping:
		return metrics.ClosedDraining
	default:
	}
	if s.ended.Load() {
		return metrics.ClosedByClient
	}
	return metrics.ClosedIdle // for idle_timeout, or it did not answer a ping
}

// A conn is a connection as its calls see it.
type conn struct {
	outbox
	door    *Door
	source  uint64 // for fairness; see predict.Door
	socket  *socket
	cancels cancels
}

// standing returns since when the client has read nothing of its answers; zero if there are none.
func (c *conn) standing() (since time.Time) {
	if since = c.still(); since.IsZero() {
		return since
	}
	if moved := time.Unix(0, c.socket.moved.Load()); moved.After(since) {
		since = moved
	}
	return since
}

// look closes the connection if its client has read nothing of its answers for stall_timeout.
func (c *conn) look(now time.Time) {
	const enough = time.Second // to lose room, see gate.Outbox.Stand
	since := c.standing()
	if since.IsZero() {
		return
	}
	switch still := now.Sub(since); {
	case still >= c.door.settings.Load().StallTimeout:
		c.door.log.Info("closing a connection: it does not read its answers", "peer", c.socket.RemoteAddr().String(), "for", still)
		c.socket.end(metrics.ClosedStalled)
	case still >= enough:
		c.stand()
	}
}

type connKey struct{}

// connOf is the connection that a call came on.
func connOf(ctx context.Context) *conn { return ctx.Value(connKey{}).(*conn) }

// connections puts its connection into the context of each call. It is grpc-go's stats handler, of
// which nothing else is used.
type connections struct{ door *Door }

func (k connections) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	d := k.door
	c := &conn{door: d, source: d.NewSource()}
	c.socket = info.RemoteAddr.(*address).socket
	c.socket.conn.Store(c)
	c.cancels.begin(d.reformed(c.socket.Host(), time.Now()))
	d.mu.Lock()
	c.setLimit(d.settings.Load().OutboundBytes)
	d.conns[c] = struct{}{}
	d.mu.Unlock()
	return context.WithValue(ctx, connKey{}, c)
}

func (k connections) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		c := connOf(ctx)
		k.door.mu.Lock()
		delete(k.door.conns, c)
		k.door.mu.Unlock()
		c.end()
	}
}

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (connections) HandleRPC(context.Context, stats.RPCStats) {}

// watch looks at the connections' clocks until the door closes for good.
func (d *Door) watch(ended <-chan struct{}) {
	const often = 200 * time.Millisecond
	tick := time.NewTicker(often)
	defer tick.Stop()
	for {
		tick.Reset(min(often, d.settings.Load().StallTimeout/4))
		select {
		case <-ended:
			return
		case now := <-tick.C:
			d.mu.Lock()
			conns := slices.Collect(maps.Keys(d.conns))
			d.mu.Unlock()
			for _, c := range conns {
				c.look(now)
			}
		}
	}
}
