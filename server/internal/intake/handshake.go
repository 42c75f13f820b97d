package intake

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/secure"
	"github.com/shivad/shivad/server/metrics"
)

// A connection to an address of TLS counts against the limits from its beginning, and the door gets
// it when its handshake is done. Until then it has a goroutine here.

// turns are for those who calculate handshakes: half of the processors do, at most, so that the
// other half is there for clients that are served. A handshake is up to two milliseconds of
// calculation (RSA), and a thousand at once would have every processor for as long as they last.
var turns = make(chan struct{}, max(1, runtime.NumCPU()/2))

// A wire is what TLS reads and writes. During the handshake it takes a turn when something has
// arrived, and gives it up to wait for more.
type wire struct {
	net.Conn
	turn bool // it has one
	done bool // the handshake is
}

func (w *wire) Read(p []byte) (int, error) {
	if w.done {
		return w.Conn.Read(p)
	}
	w.give()
	n, err := w.Conn.Read(p)
	if err == nil {
		turns <- struct{}{}
		w.turn = true
	}
	return n, err
}

// Handshake makes the server's side of TLS on a connection, in turn with those of all doors, and
// within the connection's deadline.
func Handshake(c net.Conn, config *tls.Config) (*tls.Conn, error) {
	return (&wire{Conn: c}).shake(config)
}

func (w *wire) shake(config *tls.Config) (*tls.Conn, error) {
	t := tls.Server(w, config)
	err := t.Handshake()
	w.give()
	w.done = err == nil
	return t, err
}

func (w *wire) give() {
	if w.turn {
		w.turn = false
		<-turns
	}
}

// shake does the handshake of a connection that begin has noted. It reports false, and the
// connection has ended, if that fails.
func (l *Listener) shake(c *Conn) bool {
	defer l.finish(c)
	_ = c.socket.SetDeadline(time.Now().Add(l.Limits().HandshakeTimeout))
	c.wire = &wire{Conn: c.socket}
	var err error
	if c.tls, err = c.wire.shake(l.TLS().Config); err == nil {
		err = c.socket.SetDeadline(time.Time{})
	}
	if err != nil {
		l.fail(c, err)
		return false
	}
	c.Conn = c.tls
	c.certificate = secure.PeerCertificate(c.tls)
	return true
}

// fail ends a connection whose handshake has failed. A client that does not speak TLS is told so on
// the door's wire; others have been sent an alert, and may read it.
func (l *Listener) fail(c *Conn, err error) {
	switch e, ok := errors.AsType[tls.RecordHeaderError](err); {
	case ok && e.Conn != nil && l.Refusal != nil:
		l.refuse(c.socket, fmt.Errorf("%w: this address speaks TLS: expected its handshake, got the bytes %q", scheduler.ErrInvalidInput, e.RecordHeader))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed), !l.linger(c.socket):
		c.socket.Close()
	}
	c.Because(metrics.ClosedHandshake)
	c.Leave()
	if others, may := l.mayLog(); may {
		l.Log.Info("a TLS handshake failed", "door", l.Door, "peer", c.peer.String(), "error", err, "others in the last second", others)
	}
}

// mayLog tells whether a failed handshake is the first of a second, and how many were not logged
// since the last one that was: anybody can cause them.
func (l *Listener) mayLog() (others int, may bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Sub(l.logged) < time.Second {
		l.unlogged++
		return 0, false
	}
	others, l.logged, l.unlogged = l.unlogged, now, 0
	return others, true
}

// begin notes a handshake. If there are too many, the oldest of the host that has the most ends for
// it: were newcomers refused instead, whoever says nothing could keep everybody else out. It is
// called in the order in which they come, or the newest would be taken for the oldest. It reports
// false once the listener is closed.
func (l *Listener) begin(c *Conn) bool {
	most := l.Limits().Handshakes
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.unfinished) >= max(most, 1) {
		crowd := map[Host]int{}
		for _, other := range l.unfinished {
			crowd[other.host]++
		}
		oldest := l.unfinished[0]
		for _, other := range l.unfinished {
			if crowd[other.host] > crowd[oldest.host] {
				oldest = other
			}
		}
		l.dropLocked(oldest)
		oldest.socket.Close() // its goroutine finds out by that
	}
	l.unfinished = append(l.unfinished, c)
	return true
}

// finish notes the end of a handshake.
func (l *Listener) finish(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked(c)
}

func (l *Listener) dropLocked(c *Conn) {
	if i := slices.Index(l.unfinished, c); i >= 0 {
		l.unfinished = slices.Delete(l.unfinished, i, i+1)
	}
}

// PeerCertificate is the one by which the client has shown who it is, and which was verified; nil:
// it has shown none.
func (c *Conn) PeerCertificate() *x509.Certificate { return c.certificate }

// Socket is what carries the connection: a *net.TCPConn or a *net.UnixConn.
func (c *Conn) Socket() net.Conn { return c.socket }

// TLS is what the connection is encrypted by; nil: it is plain. From now on it reads and writes
// carrier in place of the socket. It is called before the first Read, by a door that waits for its
// sockets itself.
func (c *Conn) TLS(carrier net.Conn) *tls.Conn {
	if c.tls != nil {
		c.wire.Conn = carrier
	}
	return c.tls
}
