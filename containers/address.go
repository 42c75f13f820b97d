package containers

import (
	"fmt"
	"net"
	"strings"

	"github.com/shivad/shivad/shiva/unixsocket"
)

// splitAddr parses "tcp://host:port", "host:port", "ipc://path" or "ipc://@name" into network and
// address.
func splitAddr(addr string) (network, address string, err error) {
	scheme, rest, found := strings.Cut(addr, "://")
	if !found {
		scheme, rest = "tcp", addr
	}
	switch scheme {
	case "tcp":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("containers: address %q: expected tcp://host:port: %w", addr, err)
		}
		return "tcp", strings.Replace(rest, "*:", ":", 1), nil // libzmq writes tcp://*:7000
	case "ipc":
		if rest == "" || rest == "@" {
			return "", "", fmt.Errorf("containers: address %q: expected ipc://path or ipc://@name", addr)
		}
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("containers: address %q: expected tcp:// or ipc://", addr)
}

// listen opens one address. It takes over a socket file that a killed server left behind, but not
// one on which a server listens.
func listen(addr string) (net.Listener, error) {
	network, address, err := splitAddr(addr)
	if err != nil {
		return nil, err
	}
	var l net.Listener
	if network == "unix" {
		l, err = unixsocket.Listen(address, unixsocket.Access{})
	} else {
		l, err = net.Listen(network, address)
	}
	if err != nil {
		return nil, fmt.Errorf("containers: listen %s: %w", addr, err)
	}
	return l, nil
}
