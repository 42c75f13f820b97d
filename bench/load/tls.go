package load

import (
	"context"
	"crypto/tls"
	"io"
	"net"
)

// protocols are the names of the wires in ALPN.
var protocols = map[Wire][]string{HTTP: {"http/1.1"}, GRPC: {"h2"}}

// A secured connection is TLS on a socket that a loop waits for. Once the loop owns the socket
// (own), the connection never blocks: a read without data returns the socket's error, which TLS
// takes for a temporary one; a write passes on what the socket accepts and keeps the rest for
// flush.
type secured struct {
	net.Conn // until the loop has the socket
	tls      *tls.Conn
	fd       int // of the loop; 0: the loop does not own the socket yet
	block    []byte
	ahead    []byte // of block: read, and not decrypted
	pending  []byte // encrypted, and not written
}

// encryptAtOnce is the number of bytes encrypted before a write: four records.
const encryptAtOnce = 64 << 10

// encrypt makes the handshake of TLS on nc.
func encrypt(ctx context.Context, nc net.Conn, cfg *Config) (*secured, error) {
	config := cfg.TLS.Clone()
	config.NextProtos = protocols[cfg.Wire]
	config.DynamicRecordSizingDisabled = true // large requests do not begin with small records
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(cfg.Addr)
	}
	s := &secured{Conn: nc}
	s.tls = tls.Client(s, config)
	return s, s.tls.HandshakeContext(ctx)
}

// own hands the socket to a loop.
func (s *secured) own(fd int) { s.fd, s.block = fd, make([]byte, encryptAtOnce) }

// Read is TLS's access to the socket.
func (s *secured) Read(p []byte) (int, error) {
	if s.fd == 0 {
		return s.Conn.Read(p)
	}
	if len(s.ahead) == 0 {
		n, err := readSocket(s.fd, s.block)
		switch {
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		s.ahead = s.block[:n]
	}
	n := copy(p, s.ahead)
	s.ahead = s.ahead[n:]
	return n, nil
}

// Write is TLS's access to the socket.
func (s *secured) Write(p []byte) (int, error) {
	if s.fd == 0 {
		return s.Conn.Write(p)
	}
	s.pending = append(s.pending, p...)
	return len(p), nil
}

// write encrypts part of p once everything before it has been written. It reports whether the
// socket is full.
func (s *secured) write(p []byte) (n int, full bool, err error) {
	if full, err = s.flush(); full || err != nil {
		return 0, full, err
	}
	if n, err = s.tls.Write(p[:min(len(p), encryptAtOnce)]); err == nil {
		full, err = s.flush()
	}
	return n, full, err
}

// flush writes what is pending.
func (s *secured) flush() (full bool, err error) {
	for sent := 0; ; {
		if sent == len(s.pending) {
			s.pending = s.pending[:0]
			return false, nil
		}
		n, err := writeSocket(s.fd, s.pending[sent:])
		if err != nil {
			s.pending = s.pending[:copy(s.pending, s.pending[sent:])]
			if again(err) {
				return true, nil
			}
			return false, err
		}
		sent += n
	}
}

// end sends the server a close notification, if the socket has room for it.
func (s *secured) end() {
	_ = s.tls.CloseWrite()
	_, _ = s.flush()
}
