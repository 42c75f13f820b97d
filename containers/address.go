package containers

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
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

// A tlsAddr is an address on which TLS is spoken, as a container dials it.
type tlsAddr struct{ *net.TCPAddr }

func (tlsAddr) Network() string  { return "tls" }
func (a tlsAddr) String() string { return "tls://" + a.TCPAddr.String() }

// A tlsListener has that address. It accepts plain connections: the handshake is the session's.
type tlsListener struct{ net.Listener }

func (l tlsListener) Addr() net.Addr { return tlsAddr{l.Listener.Addr().(*net.TCPAddr)} }

// listen opens one address. It replaces a socket file that a killed server left behind, but not
// one on which a server listens.
func listen(addr string) (net.Listener, error) {
	network, address, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	if network == "unix" && address[0] != '@' {
		if err := removeStale(address); err != nil {
			return nil, fmt.Errorf("containers: listen %s: %w", addr, err)
		}
	}
	encrypted := network == "tls"
	if encrypted {
		network = "tcp"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("containers: listen %s: %w", addr, err)
	}
	if encrypted {
		l = tlsListener{l}
	}
	return l, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("another server listens on %s", path)
	}
	// A server that accepts nothing just now still owns it.
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("another server may listen on %s: %w", path, err)
	}
	return os.Remove(path)
}
