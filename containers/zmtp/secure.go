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

// A carrier is the socket below TLS. TLS cannot go on after a write that has failed, as the peer
// would miss the rest of a record; so the time that a slow peer is given, for the next bytes and
// not for a message, is given here. It lets TLS be closed without waiting, too: the end of a
// connection that TLS itself writes may wait for the peer to read.
type carrier struct {
	net.Conn
	fd      syscall.RawConn // nil: what it holds cannot be told
	timeout time.Duration   // of writing; 0: as its deadline says
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

// unsent is how many bytes the socket holds that the peer has not taken.
func (c *carrier) unsent() (bytes int) {
	if c.fd != nil {
		// A socket that is closed will say so itself.
		_ = c.fd.Control(func(fd uintptr) { bytes = unsent(fd) })
	}
	return bytes
}

// encrypt makes the handshake of TLS on the socket. What is wrong with it is said in terms of
// addresses where the peer speaks something else.
func encrypt(c *carrier, secure func(net.Conn) (net.Conn, error), server bool) (net.Conn, error) {
	conn, err := secure(c)
	if err == nil {
		return conn, nil
	}
	e, foreign := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case foreign && server:
		err = fmt.Errorf("this address speaks TLS (tls://): expected its handshake, got the bytes %q", e.RecordHeader)
		if e.RecordHeader[0] == greetingMark {
			refuse(c.Conn, err)
		}
		return nil, protocolError("handshake: %v", err)
	case foreign:
		return nil, protocolError("handshake: the server does not answer in TLS, but with the bytes %q: is its address plain (tcp://)?", e.RecordHeader)
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

// linger hangs up, and reads what arrives until the peer does so, too: a socket that is closed with
// something unread is reset, and the peer may lose what was written last.
func linger(raw net.Conn) {
	if half, ok := raw.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil && raw.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		_, _ = io.CopyN(io.Discard, raw, lingerBytes)
	}
}

// refuse tells a peer in ZMTP what is wrong.
func refuse(raw net.Conn, reason error) {
	_ = raw.SetWriteDeadline(time.Now().Add(lingerTime))
	if _, err := raw.Write(Refusal(reason)); err == nil {
		linger(raw)
	}
}

// Refusal is what tells a peer, in the place of a handshake, why its connection is refused. A
// reason of more than 248 bytes is cut.
func Refusal(reason error) []byte {
	greeting := make([]byte, greetingSize)
	greeting[0], greeting[9], greeting[10] = greetingMark, 0x7f, 3
	copy(greeting[12:], "NULL")
	text := reason.Error()
	text = text[:min(len(text), 255-len("ERROR")-2)]
	var o Outgoing
	o.command("ERROR", append([]byte{byte(len(text))}, text...))
	return append(greeting, o.scratch...)
}
