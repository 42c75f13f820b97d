package grpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"

	"github.com/shivad/shivad/server/metrics"
	"github.com/shivad/shivad/shiva/tensor"
)

// A listener lets so many connections in and counts them and their bytes.
type listener struct {
	net.Listener
	most     int
	metrics  *metrics.Door
	stopping <-chan struct{}
	open     atomic.Int64
}

// Accept waits for a connection that may be let in. Those above the limit are closed at once: a client's library tries again
// later, and no descriptor is taken meanwhile.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.metrics.Opened()
		if l.open.Add(1) <= int64(l.most) {
			return &socket{Conn: c, from: l}, nil
		}
		l.open.Add(-1)
		l.metrics.Closed(metrics.ClosedConnectionLimit)
		c.Close()
	}
}

// A socket is a connection as the network sees it.
type socket struct {
	net.Conn
	from   *listener
	ended  atomic.Bool // the client has hung up
	closed atomic.Bool
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.from.metrics.Received(n)
	if err != nil && !errors.Is(err, net.ErrClosed) {
		s.ended.Store(true)
	}
	return n, err
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	s.from.metrics.Sent(n)
	return n, err
}

func (s *socket) Close() error {
	if s.closed.CompareAndSwap(false, true) {
		s.from.open.Add(-1)
		s.from.metrics.Closed(s.why())
	}
	return s.Conn.Close()
}

// why is the reason of closing, as well as it can be told: grpc-go says none.
func (s *socket) why() metrics.Closed {
	select {
	case <-s.from.stopping:
		return metrics.ClosedDraining
	default:
	}
	if s.ended.Load() {
		return metrics.ClosedByClient
	}
	return metrics.ClosedIdle // for idle_timeout, or it did not answer a ping
}

// A conn is a connection as its calls see it.
//
// It keeps what of answers is on the way out. grpc-go takes a reference to the memory of a message and gives it back when the bytes
// have left or the call has ended, but not when the connection ends before: what then waits for the client's window stays
// referenced. Its own buffers are left to the garbage collector by that, ours would be missing from the pool. So what is left when
// grpc-go says that the connection has ended, which it does after its writer has, is released here.
type conn struct {
	source uint64 // for fairness; see predict.Door

	mu   sync.Mutex
	held map[*holding]struct{}
}

// A holding is memory of an answer on its way out. It is the pool that grpc-go gives the bytes back to.
type holding struct {
	conn *conn
	buf  *tensor.Buffer
	data []byte
}

// hold makes a buffer for the transport of an answer's data, which buf owns.
func (c *conn) hold(data []byte, buf *tensor.Buffer) mem.Buffer {
	h := &holding{conn: c, buf: buf, data: data}
	buf.Retain()
	c.mu.Lock()
	if c.held == nil {
		c.held = make(map[*holding]struct{})
	}
	c.held[h] = struct{}{}
	c.mu.Unlock()
	return mem.NewBuffer(&h.data, h)
}

// Get is there for the interface: grpc-go asks a message's pool for nothing.
func (h *holding) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put is called when grpc-go has no more use for the data.
func (h *holding) Put(*[]byte) {
	h.conn.mu.Lock()
	_, held := h.conn.held[h]
	delete(h.conn.held, h)
	h.conn.mu.Unlock()
	if held {
		h.buf.Release()
	}
}

// end releases what is still held. A handler that is sending meanwhile has a reference of its own.
func (c *conn) end() {
	c.mu.Lock()
	held := c.held
	c.held = nil
	c.mu.Unlock()
	for h := range held {
		h.buf.Release()
	}
}

type connKey struct{}

// connOf is the connection that a call came on.
func connOf(ctx context.Context) *conn { return ctx.Value(connKey{}).(*conn) }

// connections tells calls their connection. It is grpc-go's stats handler, which is called for all else as well.
type connections struct{ door *Door }

func (k connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, connKey{}, &conn{source: k.door.NewSource()})
}

func (connections) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		connOf(ctx).end()
	}
}

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (connections) HandleRPC(context.Context, stats.RPCStats) {}
