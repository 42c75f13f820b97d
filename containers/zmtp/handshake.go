package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	greetingSize = 64
	greetingMark = 0xff // the first byte
	tlsMark      = 0x16 // the first byte of a TLS handshake
)

// Peer describes the other side, as known from the handshake.
type Peer struct {
	// Identity is chosen by the peer: up to 255 arbitrary bytes, usually none, not unique. It is a
	// label for people, quoted wherever it is shown, and never a key.
	Identity string
	// Minor is the minor version of the peer's ZMTP 3. PING exists from 3.1.
	Minor byte
}

// handshake runs the library's handshake over raw. The caller has set a deadline, which bounds a
// peer that stays silent or sends a byte a second, and closes raw on an error.
//
// The library panics on READY commands without a known Socket-Type and on properties that point
// past their end, and allocates as much as a length announces. So guard reads and checks both units
// before the library sees them, and recover catches panics that are still unknown.
//
// unwanted is [Config.Unwanted].
func handshake(raw net.Conn, client string, server bool, unwanted func() error) (peer Peer, err error) {
	own, want := zmq4.SocketType(client), zmq4.Router
	if server {
		own, want = want, own
	}
	g := &guard{Conn: raw, want: string(want)}
	defer func() {
		if r := recover(); r != nil {
			err = protocolError("handshake: %v", r)
		}
	}()
	conn, err := zmq4.Open(g, null.Security(), own, nil, server, nil)
	if unwanted != nil {
		if reason := unwanted(); reason != nil {
			g.part(reason)
			return Peer{}, reason
		}
	}
	if g.err != nil {
		return Peer{}, g.err // the cause, not the library's error about it
	}
	if err != nil {
		return Peer{}, fmt.Errorf("zmtp: handshake: %w", err)
	}
	return Peer{Identity: conn.Peer.Meta["Identity"], Minor: g.minor}, nil
}

// A guard stands between the library and the socket during the handshake. It reads the greeting and
// the READY frame as whole units, checks them, and serves the library from memory; it reads no byte
// beyond READY. In the other direction it corrects the minor version: the library greets as 3.0,
// but the code after the handshake is ours and answers PING, which is all that 3.1 adds to these
// sockets.
type guard struct {
	net.Conn
	want string // the Socket-Type that the peer must have

	unit   int // 0: greeting is next, 1: READY is next, 2: nothing more may be read
	wrote  bool
	minor  byte
	unread []byte
	err    error
}

func (g *guard) Write(p []byte) (int, error) {
	if !g.wrote && len(p) == greetingSize {
		p = bytes.Clone(p)
		p[11] = 1
	}
	n, err := g.Conn.Write(p)
	g.wrote = g.wrote || n > 0
	if err != nil && g.unit == 1 {
		// The peer has hung up after its greeting, and may have said why in place of READY.
		if _, reason := g.next(); errors.As(reason, new(*PeerError)) {
			g.err = reason
		}
	}
	return n, err
}

func (g *guard) Read(p []byte) (int, error) {
	if len(g.unread) == 0 {
		if g.err == nil {
			g.unread, g.err = g.next()
			g.unit++
		}
		if g.err != nil {
			return 0, g.err
		}
	}
	n := copy(p, g.unread)
	g.unread = g.unread[n:]
	return n, nil
}

// part tells the peer why its connection is not wanted any more.
func (g *guard) part(reason error) {
	text := Refusal(reason)
	if g.wrote {
		text = text[greetingSize:]
	}
	refuse(g.Conn, text)
}

func (g *guard) next() ([]byte, error) {
	switch g.unit {
	case 0:
		return g.greeting()
	case 1:
		return g.ready()
	}
	return nil, protocolError("handshake: read past READY")
}

func (g *guard) greeting() ([]byte, error) {
	b := make([]byte, greetingSize)
	// The first byte alone refuses other protocols, before 64 bytes have arrived.
	for _, part := range []struct{ from, to int }{{0, 1}, {1, 12}, {12, greetingSize}} {
		if _, err := io.ReadFull(g.Conn, b[part.from:part.to]); err != nil {
			return nil, fmt.Errorf("zmtp: handshake: greeting: %w", err)
		}
		if err := checkGreeting(b[:part.to]); err != nil {
			return nil, err
		}
	}
	g.minor = b[11]
	return b, nil
}

// checkGreeting checks as much of a greeting as has arrived.
func checkGreeting(b []byte) error {
	if len(b) > 0 && b[0] == tlsMark {
		return protocolError("handshake: the peer speaks TLS, and this address is plain: expected tcp:// on its side, or an address of TLS (tls://) here")
	}
	if len(b) > 0 && b[0] != greetingMark {
		return protocolError("handshake: first byte %#02x is not a ZeroMQ greeting", b[0])
	}
	if len(b) > 9 && b[9] != 0x7f {
		return protocolError("handshake: byte 9 of the greeting is %#02x, expected 0x7f", b[9])
	}
	if len(b) > 10 && b[10] < 3 {
		return protocolError("handshake: ZMTP version %d, expected 3 (libzmq 4.0 or later)", b[10])
	}
	if len(b) < greetingSize {
		return nil
	}
	if m := mechanism(b); m != "NULL" {
		return protocolError("handshake: security mechanism %.20q, expected NULL", m)
	}
	if b[32] > 1 {
		return protocolError("handshake: as-server byte is %d", b[32])
	}
	return nil
}

func mechanism(greeting []byte) string {
	name, _, _ := bytes.Cut(greeting[12:32], []byte{0})
	return string(name)
}

func (g *guard) ready() ([]byte, error) {
	b := make([]byte, 2, 256)
	if _, err := io.ReadFull(g.Conn, b); err != nil {
		return nil, fmt.Errorf("zmtp: handshake: READY: %w", err)
	}
	if b[0]&flagLong != 0 {
		b = b[:maxHeader]
		if _, err := io.ReadFull(g.Conn, b[2:]); err != nil {
			return nil, fmt.Errorf("zmtp: handshake: READY: %w", err)
		}
	}
	h, n, err := parseHeader(b)
	if err != nil {
		return nil, err
	}
	if !h.command() {
		return nil, protocolError("handshake: a message before READY")
	}
	if h.size > maxReadyBytes {
		return nil, fmt.Errorf("%w: handshake: READY of %d bytes, limit %d", ErrTooLarge, h.size, maxReadyBytes)
	}
	b = append(b, make([]byte, h.size)...)
	if _, err := io.ReadFull(g.Conn, b[n:]); err != nil {
		return nil, fmt.Errorf("zmtp: handshake: READY: %w", err)
	}
	return b, checkReady(b[n:], g.want)
}

// checkReady walks a READY command's properties. It writes the two names that matter in the
// spelling that the library looks for: ZMTP says that names ignore case, the library's maps do
// not.
func checkReady(body []byte, want string) error {
	name, props, err := splitCommand(body)
	if err != nil {
		return err
	}
	if string(name) == "ERROR" {
		return peerError(props)
	}
	if string(name) != "READY" {
		return protocolError("handshake: command %.32q, expected READY", name)
	}
	socketType := ""
	for len(props) > 0 {
		n := int(props[0])
		if n == 0 || len(props) < 1+n+4 {
			return protocolError("handshake: READY property cut short")
		}
		key := props[1 : 1+n]
		size := binary.BigEndian.Uint32(props[1+n:])
		props = props[1+n+4:]
		if uint64(size) > uint64(len(props)) {
			return protocolError("handshake: READY property %.32q of %d bytes, %d left", key, size, len(props))
		}
		value := props[:size]
		props = props[size:]
		switch {
		case strings.EqualFold(string(key), "Socket-Type"):
			copy(key, "Socket-Type")
			socketType = string(value)
		case strings.EqualFold(string(key), "Identity"):
			copy(key, "Identity")
			if len(value) > 255 {
				return protocolError("handshake: identity of %d bytes, limit 255", len(value))
			}
		}
	}
	if socketType != want {
		return protocolError("handshake: peer is a %.32q socket, expected %s", socketType, want)
	}
	return nil
}
