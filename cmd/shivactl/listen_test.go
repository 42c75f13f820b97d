package main

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/shivad/shivad/shiva/unixsocket"
)

// listen opens a free address of a network, "tcp" or "unix".
func listen(t *testing.T, network string) net.Listener {
	t.Helper()
	addr := "127.0.0.1:0"
	if network == "unix" {
		addr = "unix:" + filepath.Join(t.TempDir(), "s")
	}
	l, err := unixsocket.Open(addr, unixsocket.Access{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// deaf is an address where nothing listens. The port of a listener that was closed goes to the next
// who asks for one, perhaps a server of another test; that of a client's connection stays its own.
func deaf(t *testing.T, network string) string {
	t.Helper()
	l := listen(t, network)
	if network == "unix" {
		l.Close()
		return l.Addr().String()
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.LocalAddr().String()
}
