package listen

import (
	"net"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

const tlsScheme = "tls:"

// TLSNetwork is the Network of a TLS address.
const TLSNetwork = "tls"

// CutTLS returns the host and port of a TLS address, "tls://host:port" or "tls:host:port". ok
// reports whether addr is one.
func CutTLS(addr string) (hostport string, ok bool) {
	hostport, ok = strings.CutPrefix(addr, tlsScheme)
	return strings.TrimPrefix(hostport, "//"), ok
}

// A TLSAddr is a TLS address in the form that clients dial: "tls://host:port".
type TLSAddr struct{ *net.TCPAddr }

// Network distinguishes a TLS address from a plain TCP one.
func (TLSAddr) Network() string  { return TLSNetwork }
func (a TLSAddr) String() string { return tlsScheme + "//" + a.TCPAddr.String() }

// Open listens on a TLS address, or any other that package unixsocket knows. Connections accepted
// from a TLS address are still plain: the handshake is up to the caller.
func Open(addr string, access unixsocket.Access) (net.Listener, error) {
	hostport, ok := CutTLS(addr)
	if !ok {
		return unixsocket.Open(addr, access)
	}
	l, err := net.Listen("tcp", hostport)
	if err != nil {
		return nil, err
	}
	return tlsListener{l}, nil
}

// A tlsListener reports the TLS address instead of the TCP one.
type tlsListener struct{ net.Listener }

func (l tlsListener) Addr() net.Addr { return TLSAddr{l.Listener.Addr().(*net.TCPAddr)} }
