package main

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/shivad/shivad/shiva/hosttest"
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

// deaf is an address of a network where nothing listens until the test ends.
func deaf(t *testing.T, network string) string {
	t.Helper()
	if network == "tcp" {
		return hosttest.Refusing(t)
	}
	l := listen(t, network)
	l.Close()
	return l.Addr().String()
}
