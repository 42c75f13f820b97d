package zmtp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// A carrier is the socket below TLS. TLS cannot continue after a failed write, as the peer would
// miss the rest of a record; so the carrier itself extends the deadline of a slow peer, for the
// next bytes and not for a message. It also lets TLS be closed without waiting: TLS's own closing
// message may wait for the peer to read.
type carrier struct {
	net.Conn
	fd      syscall.RawConn // nil: the bytes that it holds cannot be counted
	timeout time.Duration   // of writing; 0: the deadline that was set
}

func (c *carrier) Write(p []byte) (n int, err error) {
	if c.timeout == 0 {
		return c.Conn.Write(p)
	}
	for held := c.unsent(); ; {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:])
		n += m
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		left := c.unsent()
		if m == 0 && left >= held {
			return n, err
		}
		held = left
	}
}

// unsent returns how many bytes in the socket the peer has not taken.
func (c *carrier) unsent() (bytes int) {
	if c.fd != nil {
		// A closed socket reports its own error.
		_ = c.fd.Control(func(fd uintptr) { bytes = unsent(fd) })
	}
	return bytes
}

// encrypt performs the TLS handshake on the socket. If the peer does not speak TLS, the error says
// so in terms of addresses.
func encrypt(c *carrier, secure func(net.Conn) (net.Conn, error), server bool) (net.Conn, error) {
	conn, err := secure(c)
	if err == nil {
		return conn, nil
	}
	e, foreign := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case foreign && server:
		err = fmt.Errorf("this address speaks TLS (tls://): expected a TLS handshake, got the bytes %q", e.RecordHeader)
		if e.RecordHeader[0] == greetingMark {
			refuse(c.Conn, Refusal(err))
		}
		return nil, protocolError("handshake: %v", err)
	case foreign:
		return nil, protocolError("handshake: the server does not answer in TLS, but with the bytes %q: is its address plain (tcp://)?",
			e.RecordHeader)
	case server && !errors.Is(err, os.ErrDeadlineExceeded): // TLS has told the peer why
		linger(c.Conn)
	}
	return nil, fmt.Errorf("zmtp: handshake of TLS: %w", err)
}

// lingerTime is how long a peer may take to read why it is refused, and lingerBytes how much it may
// send meanwhile.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// linger half-closes, and reads what arrives until the peer closes, too: a socket that is closed
// with unread bytes is reset, and the peer may lose the last bytes written to it.
func linger(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil &&
		raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, raw, lingerBytes)
	}
}

// refuse tells a peer why it is refused: text is ZMTP.
func refuse(raw net.Conn, text []byte) {
	_ = raw.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := raw.Write(text); err == nil {
		linger(raw)
	}
}

// Refusal returns the bytes that tell a peer, in place of a handshake, why its connection is
// refused. A reason of more than 248 bytes is cut.
func Refusal(reason error) []byte {
	greeting := make([]byte, greetingSize)
	greeting[0], greeting[9], greeting[10] = greetingMark, 0x7f, 3
	copy(greeting[12:], "NULL")
	var o Outgoing
	o.command("ERROR", errorBody(reason))
	return append(greeting, o.scratch...)
}

// errorBody is the body of ERROR: a length byte, then the text.
func errorBody(reason error) []byte {
	text := reason.Error()
	text = text[:min(len(text), 255-len("ERROR")-2)]
	return append([]byte{byte(len(text))}, text...)
}
