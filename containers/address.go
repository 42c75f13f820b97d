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
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("containers: listen %s: %w", addr, err)
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
