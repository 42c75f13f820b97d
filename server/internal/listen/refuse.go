package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	maxLingering = 16 // refused or dismissed connections that are not yet closed
	lingerTime   = time.Second
	lingerBytes  = 4 << 20
)

// refuse tells a client why its connection is not admitted, without waiting for it, and closes the
// connection.
func (l *Listener) refuse(c net.Conn, err error) {
	if l.Refusal != nil {
		_ = c.SetDeadline(time.Time{})
		text := l.Refusal(err)
		// The empty send buffer of a new socket takes the text at once, unless the machine stalls
		// past the deadline, and then Write does not even try. Hence the repetition.
		for range 3 {
			_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			if n, err := c.Write(text); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
		if l.linger(c) {
			return
		}
	}
	c.Close()
}

// linger closes the writing side, discards what the client sends for a while, and then closes the
// connection. If it closed at once, with unread input, the kernel would send a reset and the client
// would lose the last bytes written; without reading, a client that sends more than the socket
// buffers hold would block until that reset. linger reports false if the connection cannot linger,
// or too many already do: each holds a descriptor above the limit.
func (l *Listener) linger(c net.Conn) bool {
	half, ok := c.(halfCloser)
	if !ok || half.CloseWrite() != nil {
		return false
	}
	return l.stay(c, func() { _, _ = io.CopyN(io.Discard, c, lingerBytes) })
}

// stay runs do, which reads from the connection for up to lingerTime, and then closes it. It
// reports false if too many connections linger.
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

// refuseEncrypted is refuse for a client on a TLS address, which can read the reason only after its
// handshake.
func (l *Listener) refuseEncrypted(c net.Conn, reason error) {
	stays := l.Refusal != nil && l.stay(c, func() {
		t, err := Handshake(c, l.Settings().TLS.Config)
		if err != nil {
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(lingerTime))
		_, _ = t.Write(l.Refusal(reason))
		_ = t.CloseWrite()
		_, _ = io.CopyN(io.Discard, t, lingerBytes)
	})
	if !stays {
		c.Close()
	}
}
