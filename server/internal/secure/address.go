package secure

import (
	"net"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

const scheme = "tls:"

// Network is that of an address of TLS, as net.Addr has one.
const Network = "tls"

// Cut returns the host and port of an address of TLS: "tls://host:port", or "tls:host:port". ok
// tells whether addr is one.
func Cut(addr string) (hostport string, ok bool) {
	hostport, ok = strings.CutPrefix(addr, scheme)
	return strings.TrimPrefix(hostport, "//"), ok
}

// An Addr is one on which TLS is spoken, as a client dials it: "tls://host:port".
type Addr struct{ *net.TCPAddr }

// Network tells it from one of plain TCP.
func (Addr) Network() string  { return Network }
func (a Addr) String() string { return scheme + "//" + a.TCPAddr.String() }

// Open listens on an address: one of TLS, or any that package unixsocket knows. Of TLS, what the
// listener accepts is a plain connection, and the handshake is up to its caller.
func Open(addr string, access unixsocket.Access) (net.Listener, error) {
	hostport, ok := Cut(addr)
	if !ok {
		return unixsocket.Open(addr, access)
	}
	l, err := net.Listen("tcp", hostport)
	if err != nil {
		return nil, err
	}
	return listener{l}, nil
}

// A listener has the address that a client dials.
type listener struct{ net.Listener }

func (l listener) Addr() net.Addr { return Addr{l.Listener.Addr().(*net.TCPAddr)} }
