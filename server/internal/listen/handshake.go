package listen

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/capacity"
	"github.com/shivad/shivad/server/internal/metrics"
)

// A connection to a TLS address counts against the limits from its beginning. It has a goroutine
// here until its handshake is done; then it goes to the door.

// slots limits handshakes to half of the processors, so that the other half serves clients. A
// handshake takes up to two milliseconds of processor time (RSA): a thousand at once would occupy
// every processor.
var slots = make(chan struct{}, max(1, capacity.Processors()/2))

// A wire is the connection that TLS reads and writes. During the handshake it takes a slot when
// input has arrived, and gives the slot up before it waits for more input or for room to write: the
// server's flight may be larger than the socket's buffer, for example if it names thousands of
// authorities, and a client that does not read it would keep all other clients waiting.
type wire struct {
	net.Conn
	slot bool // holds a slot
	done bool // the handshake is done
	peer peerWait
}

func (w *wire) Read(p []byte) (int, error) {
	if w.done {
		return w.Conn.Read(p)
	}
	w.give()
	w.peer.start()
	n, err := w.Conn.Read(p)
	w.peer.stop()
	if err == nil {
		slots <- struct{}{}
		w.slot = true
	}
	return n, err
}

// Write gives up the slot: the computation is done, and the write may block.
func (w *wire) Write(p []byte) (int, error) {
	w.give()
	if w.done {
		return w.Conn.Write(p)
	}
	w.peer.start()
	defer w.peer.stop()
	return w.Conn.Write(p)
}

// peerWait sums up how long a peer has been waited for in its handshake. The time in which the peer
// waits for a slot is not counted. So among thousands of handshakes, those that make progress are
// distinguished from those that do not, and a peer that sends a byte now and then does not look
// busy.
type peerWait struct {
	mu     sync.Mutex
	waited time.Duration
	since  time.Time // when the current wait began; zero: not waiting for the peer
}

func (p *peerWait) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = time.Now()
	}
}

func (p *peerWait) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waited += time.Since(p.since)
	p.since = time.Time{}
}

// total returns how long the peer has been waited for by that time.
func (p *peerWait) total(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		return p.waited
	}
	return p.waited + now.Sub(p.since)
}

// Handshake does the server's side of a TLS handshake. It shares slots with the handshakes of all
// doors, and ends at the connection's deadline.
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
	if w.slot {
		w.slot = false
		<-slots
	}
}

// shake does the handshake of a connection that begin has registered. If it fails, the connection
// has ended and shake reports false.
func (l *Listener) shake(c *Conn) bool {
	defer l.finish(c)
	_ = c.socket.SetDeadline(time.Now().Add(l.Settings().HandshakeTimeout))
	var err error
	if c.tls, err = c.wire.shake(l.Settings().TLS.Config); err == nil {
		err = c.socket.SetDeadline(time.Time{})
	}
	if err != nil {
		l.fail(c, err)
		return false
	}
	c.Conn = c.tls
	c.certificate = PeerCertificate(c.tls)
	return true
}

// fail ends a connection whose handshake has failed. A client that does not speak TLS is told so in
// the door's own protocol; other clients have been sent an alert and get time to read it.
func (l *Listener) fail(c *Conn, err error) {
	switch e, ok := errors.AsType[tls.RecordHeaderError](err); {
	case ok && e.Conn != nil && l.Refusal != nil:
		l.refuse(c.socket,
			fmt.Errorf("%w: this address speaks TLS: expected a TLS handshake, got the bytes %q",
				scheduler.ErrInvalidInput, e.RecordHeader))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, net.ErrClosed), !l.linger(c.socket):
		c.socket.Close()
	}
	c.Because(metrics.ClosedHandshake)
	c.Leave()
	l.Log.Info("a TLS handshake failed", "door", l.Door, "peer", c.peer.String(), "error", err)
}

// begin registers a handshake, which waits for its peer from now on. If there are too many, it
// picks the host with the most and closes its handshake whose peer has been waited for longest. If
// new ones were refused instead, silent clients could keep all other clients out; and if the oldest
// were closed, a steady stream of new ones would end those that are only waiting for a slot.
// begin reports false once the listener is closed.
func (l *Listener) begin(c *Conn) bool {
	c.encryption = &encryption{wire: &wire{Conn: c.socket}}
	c.wire.peer.start()
	most := l.Settings().Handshakes
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if len(l.unfinished) >= max(most, 1) {
		last := l.slowestLocked()
		l.dropLocked(last)
		last.socket.Close() // which ends its goroutine
	}
	l.unfinished = append(l.unfinished, c)
	return true
}

// slowestLocked returns the handshake to close.
func (l *Listener) slowestLocked() *Conn {
	crowd := map[Host]int{}
	for _, c := range l.unfinished {
		crowd[c.host]++
	}
	now := time.Now()
	return slices.MaxFunc(l.unfinished, func(a, b *Conn) int {
		return cmp.Or(cmp.Compare(crowd[a.host], crowd[b.host]),
			cmp.Compare(a.wire.peer.total(now), b.wire.peer.total(now)))
	})
}

// finish unregisters a handshake.
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

// PeerCertificate returns the client's verified certificate; nil if it presented none.
func (c *Conn) PeerCertificate() *x509.Certificate {
	if c.encryption == nil {
		return nil
	}
	return c.certificate
}

// Socket returns the *net.TCPConn or *net.UnixConn below the connection.
func (c *Conn) Socket() net.Conn { return c.socket }

// TLS returns the connection's TLS layer, or nil if the connection is plain, and makes that layer
// read and write carrier in place of the socket. It is for a door that polls its sockets itself.
// Call it before the first Read.
func (c *Conn) TLS(carrier net.Conn) *tls.Conn {
	if c.encryption == nil {
		return nil
	}
	c.wire.Conn = carrier
	return c.tls
}
