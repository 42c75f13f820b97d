package containers

import (
	"fmt"
	"net"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

// splitAddr parses "tcp://host:port", "host:port", "tls://host:port", "ipc://path" or "ipc://@name"
// into network and address.
func splitAddr(addr string) (network, address string, err error) {
	scheme, rest, found := strings.Cut(addr, "://")
	if !found {
		scheme, rest = "tcp", addr
	}
	switch scheme {
	case "tcp", "tls":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("containers: address %q: expected %s://host:port: %w", addr, scheme, err)
		}
		return scheme, strings.Replace(rest, "*:", ":", 1), nil // libzmq writes tcp://*:7000
	case "ipc":
		if rest == "" || rest == "@" {
			return "", "", fmt.Errorf("containers: address %q: expected ipc://path or ipc://@name", addr)
		}
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("containers: address %q: expected tcp://, tls:// or ipc://", addr)
}

// A tlsAddr is the address of a TLS listener, in the form that a container dials.
type tlsAddr struct{ *net.TCPAddr }

func (tlsAddr) Network() string  { return "tls" }
func (a tlsAddr) String() string { return "tls://" + a.TCPAddr.String() }

// A tlsListener has a tlsAddr. It accepts plain connections: the session makes the handshake.
type tlsListener struct{ net.Listener }

func (l tlsListener) Addr() net.Addr { return tlsAddr{l.Listener.Addr().(*net.TCPAddr)} }

// Open listens on an address as [Listen] does, and serves nobody there: to find out whether it can
// be opened.
func Open(addr string, access unixsocket.Access) (net.Listener, error) {
	return listen(addr, access, net.Listen)
}

// listen opens one address; open listens on TCP. It replaces a socket file that a killed server
// left behind, but not one on which a server listens.
func listen(addr string, access unixsocket.Access,
	open func(network, address string) (net.Listener, error)) (net.Listener, error) {
	network, address, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	var l net.Listener
	switch network {
	case "unix":
		l, err = unixsocket.Listen(address, access)
	case "tls":
		if l, err = open("tcp", address); err == nil {
			l = tlsListener{l}
		}
	default:
		l, err = open(network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("containers: listen %s: %w", addr, err)
	}
	return l, nil
}
