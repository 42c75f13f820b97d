package intake

import (
	"io"
	"net"
	"time"
)

const (
	maxLingering = 16 // connections that have been refused, or told to go, and are not closed yet
	lingerTime   = time.Second
	lingerBytes  = 4 << 20
)

// refuse tells a connection why it is not let in, without waiting for it, and closes it.
func (l *Listener) refuse(c net.Conn, err error) {
	if l.Refusal != nil {
		_ = c.SetDeadline(time.Time{})
		// An empty socket takes it at once.
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, _ = c.Write(l.Refusal(err))
		if l.linger(c) {
			return
		}
	}
	c.Close()
}

// linger ends our direction, discards what the client sends for a while, and closes the
// connection. Closed at once, with input that was not read, the kernel would reset it, and the
// client would lose what was written last; without reading, a client that sends more than the
// sockets hold would be sending until that reset. It reports false if the connection cannot linger,
// or too many do: each is a descriptor above the limit.
func (l *Listener) linger(c net.Conn) bool {
	half, ok := c.(halfCloser)
	if !ok || half.CloseWrite() != nil {
		return false
	}
	return l.stay(c, func() { _, _ = io.CopyN(io.Discard, c, lingerBytes) })
}

// stay closes a connection after do, which reads from it, or lingerTime. It reports false if too
// many stay.
func (l *Listener) stay(c net.Conn, do func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.lingering) >= maxLingering {
		return false
	}
	l.lingering[c] = struct{}{}
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	l.lingers.Go(func() { // ends after lingerTime, or with Close
		do()
		c.Close()
		l.mu.Lock()
		delete(l.lingering, c)
		l.mu.Unlock()
	})
	return true
}

// refuseEncrypted is refuse for a client that can read only what is said after its handshake.
func (l *Listener) refuseEncrypted(c net.Conn, reason error) {
	stays := l.Refusal != nil && l.stay(c, func() {
		t, err := Handshake(c, l.TLS().Config)
		if err != nil {
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, _ = t.Write(l.Refusal(reason))
		_ = t.CloseWrite()
		_, _ = io.CopyN(io.Discard, t, lingerBytes)
	})
	if !stays {
		c.Close()
	}
}
