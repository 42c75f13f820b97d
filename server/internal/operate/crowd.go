package operate

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/listen"
)

// maxConnections bounds the descriptors of the door: operators must not keep clients out.
const maxConnections = 16

// A boundedListener has at most maxConnections open. When another client connects, an old
// connection gives way: if new clients had to wait, one that opens connections and sends nothing
// could use up the limit, and /livez would not answer.
type boundedListener struct {
	net.Listener
	log     *slog.Logger
	stopped chan struct{} // closed when the door closes, to end watches

	mu      sync.Mutex
	held    map[*boundedConn]struct{}
	lastLog time.Time // when the last line was logged
}

func (b *boundedListener) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	k := &boundedConn{HTTPConn: &listen.HTTPConn{Conn: c}, listener: b}
	k.host, k.peer = listen.PeerOf(c)
	k.certificate = sync.OnceValue(func() *access.Certificate {
		return access.NewCertificate(listen.PeerCertificate(c))
	})
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		k.address = at.Addr().Unmap()
	}
	k.touch()
	b.mu.Lock()
	out := b.yieldLocked()
	b.held[k] = struct{}{}
	if tell := out != nil && time.Since(b.lastLog) >= time.Minute; tell {
		b.lastLog = time.Now()
		b.log.Warn("the admin API has reached its limit of connections: each new connection closes the one that has been idle the longest",
			"limit", maxConnections, "from", out.address, "to", k.address)
	}
	b.mu.Unlock()
	if out != nil {
		out.Close()
	}
	return k, nil
}

// yieldLocked removes the connection that gives way to a new one, if there are too many.
// Connections without a request in progress go first; among these, one of the address with the most
// connections, so that a crowd harms only itself; of that address, the one idle the longest.
func (b *boundedListener) yieldLocked() *boundedConn {
	if len(b.held) < maxConnections {
		return nil
	}
	crowd := map[netip.Addr]int{}
	for k := range b.held {
		crowd[k.address]++
	}
	var out *boundedConn
	for k := range b.held {
		switch busy := k.busy.Load(); {
		case out == nil || busy != out.busy.Load():
			if out == nil || !busy {
				out = k
			}
		case crowd[k.address] != crowd[out.address]:
			if crowd[k.address] > crowd[out.address] {
				out = k
			}
		case k.active.Load() < out.active.Load():
			out = k
		}
	}
	delete(b.held, out)
	return out
}

// A boundedConn is a connection that tracks since when it is idle.
type boundedConn struct {
	*listen.HTTPConn
	listener *boundedListener
	host     listen.Host
	peer     net.Addr
	address  netip.Addr
	busy     atomic.Bool  // a request is in progress
	active   atomic.Int64 // when bytes last went either way

	// certificate returns the client's certificate, or nil if it has shown none. It is called after
	// a request, and thus the handshake, has been read.
	certificate func() *access.Certificate
}

// RemoteAddr is the client's address; on a Unix socket it names the client's process.
func (k *boundedConn) RemoteAddr() net.Addr { return k.peer }

func (k *boundedConn) touch() { k.active.Store(time.Now().UnixNano()) }

func (k *boundedConn) Read(p []byte) (int, error) {
	n, err := k.HTTPConn.Read(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

func (k *boundedConn) Write(p []byte) (int, error) {
	n, err := k.HTTPConn.Write(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

// Close may be called twice: to make room, and by net/http, which then notices that the connection
// is closed.
func (k *boundedConn) Close() error {
	k.listener.mu.Lock()
	delete(k.listener.held, k)
	k.listener.mu.Unlock()
	return k.HTTPConn.Close()
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// serving marks connections with a request in progress. net/http calls a connection active from the
// first byte of a head on, which clients can send without ever completing a request.
func markBusy(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
			k.busy.Store(true)
			defer k.busy.Store(false)
		}
		h.ServeHTTP(w, r)
	})
}
