package grpc

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/stats"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/backoff"
)

// A listener gives grpc-go the door's connections. Connections above a limit are closed without an
// answer: client libraries retry later, and no descriptor is taken meanwhile.
type listener struct {
	*listen.Listener
	door *Door
}

// Accept waits for a connection within the limits.
func (l *listener) Accept() (net.Conn, error) {
	in, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: in, door: l.door, source: l.door.NewSource(), client: gate.ClientOf(in.RemoteAddr().String()),
		certificate: access.NewCertificate(in.PeerCertificate())}
	c.open, c.close = context.WithCancel(l.door.stopping)
	c.in.left = len(http2.ClientPreface)
	c.out.Conn, c.box.Setting = in, "grpc.outbound_bytes"
	c.cancels.begin(l.door.banned(in.Host(), time.Now()))
	return c, nil
}

// A conn is a client's connection, between the network and its calls. It inspects the frames that
// pass through it. Encryption would be below it.
type conn struct {
	*listen.Conn
	outbox
	door        *Door
	source      uint64              // for fairness; see predict.Door
	client      string              // gate.ClientOf
	certificate *access.Certificate // nil: the client has shown none
	cancels     cancels
	in          frames
	out         cancelFilter
	free        int // chores that cost nothing; see choresFree

	calls callsContext
	ended atomic.Bool     // the client has hung up
	open  context.Context // ends when the connection or the door closes
	close context.CancelFunc
}

// An address is a peer's address that also leads from grpc-go's connection back to the door's conn.
type address struct {
	net.Addr
	conn *conn
}

func (c *conn) RemoteAddr() net.Addr { return &address{c.Conn.RemoteAddr(), c} }

// hangUp closes the connection and records the reason. A client that is still sending reads the
// GOAWAY only if the connection lingers. Only the goroutine that reads the connection may set
// linger, and it must not read again.
func (c *conn) hangUp(why metrics.Closed, linger bool) {
	c.Because(why)
	c.outbox.close() // before the GOAWAY, and before closing frees room
	code := http2.ErrCodeEnhanceYourCalm
	if why == metrics.ClosedProtocol {
		code = http2.ErrCodeProtocol
	}
	c.out.goAway(code)
	if linger {
		c.Linger()
	}
	c.Close()
}

// Read counts the resets and chores among the frames that it reads, and the resets that the client
// has provoked. It reads no faster than the client's quotas and the connection's account of resets
// and chores allow. Of bytes that end the connection grpc-go sees nothing: no call begins for them.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.pause(len(b))])
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.ended.Store(true)
	}
	seen, now := c.in.inspect(b[:n]), time.Now()
	if seen.wrong || c.out.wrong.Load() {
		c.door.disconnect(c, metrics.ClosedProtocol, now)
		return 0, net.ErrClosed
	}
	for range seen.resets + int(c.out.provoked.Swap(0)) {
		if c.cancels.reset(now) {
			c.door.disconnect(c, metrics.ClosedCancels, now)
			return 0, net.ErrClosed
		}
	}
	c.free += choresFree*int(c.out.sent.Swap(0)) - seen.chores
	if c.free < 0 {
		c.cancels.chores(now, -c.free)
		c.free = 0
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) { return c.out.Write(b) }

func (c *conn) Close() error {
	c.close()
	c.outbox.close()
	c.Because(c.reason()) // unless one was recorded before
	if c.out.calm.Load() {
		c.door.ban(c.Host(), time.Now())
	}
	return c.Conn.Close()
}

// reason infers why grpc-go closes the connection: grpc-go does not report a reason.
func (c *conn) reason() metrics.Closed {
	switch {
	case c.door.stopping.Err() != nil:
		return metrics.ClosedDraining
	case c.ended.Load():
		return metrics.ClosedByClient
	}
	return metrics.ClosedIdle // idle_timeout passed, or the client did not answer a ping
}

// stalledSince returns since when the client has read none of its answers; zero if there are none.
func (c *conn) stalledSince() (since time.Time) {
	if since = c.idleSince(); since.IsZero() {
		return since
	}
	if moved := time.Unix(0, c.out.moved.Load()); moved.After(since) {
		since = moved
	}
	return since
}

// checkProgress closes the connection if its client has read none of its answers for stall_timeout.
func (c *conn) checkProgress(now time.Time) {
	const enough = time.Second // before the client loses room, see gate.Outbox.Stand
	since := c.stalledSince()
	if since.IsZero() {
		return
	}
	switch still := now.Sub(since); {
	case still >= c.door.settings.Load().StallTimeout:
		c.door.log.Info("closing a connection: it does not read its answers", "peer", c.RemoteAddr().String(), "for", still)
		c.hangUp(metrics.ClosedStalled, false)
	case still >= enough:
		c.stand()
	}
}

// charge charges a request to its client's quotas.
func (c *conn) charge(use *access.Use, who *access.Identity, bytes int64) error {
	if err := c.Claim(who.Account()); err != nil {
		return err
	}
	return c.Charge(use, who.Payers(c.Account()), bytes, time.Now())
}

type connKey struct{}

// connOf returns the connection of a call.
func connOf(ctx context.Context) *conn { return ctx.Value(connKey{}).(*conn) }

// connections puts the connection into the context of each of its calls. It is grpc-go's stats
// handler; nothing else of that interface is used.
type connections struct{ door *Door }

func (k connections) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	d, c := k.door, info.RemoteAddr.(*address).conn
	d.mu.Lock()
	c.setLimit(d.settings.Load().OutboundBytes)
	d.conns[c] = struct{}{}
	d.mu.Unlock()
	c.calls.Context = context.WithValue(ctx, connKey{}, c)
	return &c.calls
}

func (k connections) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		c := connOf(ctx)
		k.door.mu.Lock()
		delete(k.door.conns, c)
		k.door.mu.Unlock()
		c.outbox.end()
	}
}

func (connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (connections) HandleRPC(context.Context, stats.RPCStats) {}

// watch checks all connections for stalled clients until the door closes for good.
func (d *Door) watch(ended <-chan struct{}) {
	const often = 200 * time.Millisecond
	for backoff.Wait(min(often, d.settings.Load().StallTimeout/4), ended) {
		d.mu.Lock()
		conns := slices.Collect(maps.Keys(d.conns))
		d.mu.Unlock()
		now := time.Now()
		for _, c := range conns {
			c.checkProgress(now)
		}
	}
}
