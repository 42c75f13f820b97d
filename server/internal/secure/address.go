package secure

import (
	"net"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

const scheme = "tls:"

// Network is the Network of a TLS address.
const Network = "tls"

// Cut returns the host and port of a TLS address, "tls://host:port" or "tls:host:port". ok reports
// whether addr is one.
func Cut(addr string) (hostport string, ok bool) {
	hostport, ok = strings.CutPrefix(addr, scheme)
	return strings.TrimPrefix(hostport, "//"), ok
}

// An Addr is a TLS address in the form that clients dial: "tls://host:port".
type Addr struct{ *net.TCPAddr }

// Network distinguishes a TLS address from a plain TCP one.
func (Addr) Network() string  { return Network }
func (a Addr) String() string { return scheme + "//" + a.TCPAddr.String() }

// Open listens on a TLS address, or any other that package unixsocket knows. Connections accepted
// from a TLS address are still plain: the handshake is up to the caller.
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

// A listener reports the TLS address instead of the TCP one.
type listener struct{ net.Listener }

func (l listener) Addr() net.Addr { return Addr{l.Listener.Addr().(*net.TCPAddr)} }
