package admin

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shivad/shivad/server/internal/identity"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/secure"
)

// maxConnections bounds the descriptors that the door may hold: it must not be what keeps
// clients out.
const maxConnections = 16

// A bounded listener holds maxConnections at a time. It lets the next one in all the same, and
// one of those that it has gives way: a limit that lets newcomers wait can be filled by whoever
// opens connections and says nothing, and /livez would be silent.
type bounded struct {
	net.Listener
	log     *slog.Logger
	stopped chan struct{} // closed when the door is shut: watches end

	mu     sync.Mutex
	held   map[*boundedConn]struct{}
	logged time.Time // when the log last had a line about it
}

func (b *bounded) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	k := &boundedConn{Conn: c, from: b, peer: intake.PeerAddr(c)}
	k.certificate = sync.OnceValue(func() *identity.Certificate { return identity.NewCertificate(secure.PeerCertificate(c)) })
	if at, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
		k.address = at.Addr().Unmap()
	}
	k.touch()
	b.mu.Lock()
	out := b.yieldLocked()
	b.held[k] = struct{}{}
	if tell := out != nil && time.Since(b.logged) >= time.Minute; tell {
		b.logged = time.Now()
		b.log.Warn("the admin door has as many connections as it may: the one that has been idle for the longest gives way to each new one",
			"limit", maxConnections, "from", out.address, "to", k.address)
	}
	b.mu.Unlock()
	if out != nil {
		out.Close()
	}
	return k, nil
}

// yieldLocked takes out the connection that gives way to one more, if it comes to that. Those
// without a request in hand come first, then those of the address that has the most, so that a
// crowd from elsewhere costs nobody but itself, then the one that was quiet for the longest.
func (b *bounded) yieldLocked() *boundedConn {
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

// A boundedConn is a connection that knows how idle it is.
type boundedConn struct {
	net.Conn
	from    *bounded
	peer    net.Addr
	address netip.Addr
	busy    atomic.Bool  // a request is in hand
	active  atomic.Int64 // when bytes last went either way

	// certificate is that of the client; nil: it has shown none. It is called once a request has
	// been read, and with it the handshake.
	certificate func() *identity.Certificate
}

// RemoteAddr is that of the client; of a Unix socket that of its process.
func (k *boundedConn) RemoteAddr() net.Addr { return k.peer }

func (k *boundedConn) touch() { k.active.Store(time.Now().UnixNano()) }

func (k *boundedConn) Read(p []byte) (int, error) {
	n, err := k.Conn.Read(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

func (k *boundedConn) Write(p []byte) (int, error) {
	n, err := k.Conn.Write(p)
	if n > 0 {
		k.touch()
	}
	return n, err
}

// Close may be called twice: by whoever makes room, and by net/http, which finds out by that.
func (k *boundedConn) Close() error {
	k.from.mu.Lock()
	delete(k.from.held, k)
	k.from.mu.Unlock()
	return k.Conn.Close()
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// serving marks connections that have a request in hand. net/http calls one active from the
// first byte of a head on, which whoever says nothing more can send.
func serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if k, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
			k.busy.Store(true)
			defer k.busy.Store(false)
		}
		h.ServeHTTP(w, r)
	})
}
