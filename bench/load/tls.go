//go:build unix

package load

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// protocols are what the wires are called in ALPN.
var protocols = map[Wire][]string{HTTP: {"http/1.1"}, GRPC: {"h2"}}

// encrypt speaks TLS on nc for a loop, which waits for sockets and not for a library: two
// goroutines of the connection encrypt and decrypt between nc and the pair of sockets whose one end
// it returns. They add some microseconds to each latency. They end when either end is closed.
func encrypt(ctx context.Context, nc net.Conn, cfg *Config) (net.Conn, error) {
	config := cfg.TLS.Clone()
	config.NextProtos = protocols[cfg.Wire]
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(cfg.Addr)
	}
	c := tls.Client(nc, config)
	if err := c.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	near, far, err := pair()
	if err != nil {
		nc.Close()
		return nil, err
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(c, far)
		_ = c.CloseWrite()
	})
	both.Go(func() {
		_, _ = io.Copy(far, c)
		_ = far.(*net.UnixConn).CloseWrite()
	})
	go func() { // until the server has closed the connection, and the loop its end
		both.Wait()
		c.Close()
		far.Close()
	}()
	return near, nil
}

// pair is two connected sockets.
func pair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		unix.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), "socketpair")
		if ends[i], err = net.FileConn(f); err != nil {
			return nil, nil, fmt.Errorf("socketpair: %w", err)
		}
		f.Close()
	}
	return ends[0], ends[1], nil
}
