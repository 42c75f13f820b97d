package listen

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/shivad/shivad/shiva/shivatest"
)

// A host is shown as the unit that it counts under, and errors name it in these words.
func TestHosts(t *testing.T) {
	for _, c := range []struct {
		host       Host
		here       bool
		text, kind string
	}{
		{Host{}, false, "unknown", "address"},
		{Host{addr: netip.MustParseAddr("10.0.0.1")}, false, "10.0.0.1", "address"},
		{Host{addr: netip.MustParseAddr("127.0.0.2")}, true, "127.0.0.2", "address"},
		{Host{addr: netip.MustParseAddr("::1")}, true, "::1", "address"},
		{Host{unix: true}, true, "uid=0", "user"},
		{Host{user: 1000, unix: true}, true, "uid=1000", "user"},
	} {
		if c.host.isLocal() != c.here || c.host.String() != c.text || c.host.kind() != c.kind {
			t.Errorf("%#v: on this machine %v, %q, %q; expected %v, %q, %q", c.host, c.host.isLocal(), c.host,
				c.host.kind(), c.here, c.text, c.kind)
		}
	}
}

// The peer of a Unix socket is a user and a process, as reported by the kernel, for as long as the
// connection exists; any other peer is an address.
func TestPeers(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	host, peer := PeerOf(c)
	if want := fmt.Sprintf("uid=%d,pid=%d", os.Getuid(),
		os.Getpid()); host != (Host{user: uint32(os.Getuid()), unix: true}) || peer.String() != want ||
		peer.Network() != "unix" {
		t.Errorf("%v, %s %s; expected %s", host, peer.Network(), peer, want)
	}
	c.Close()
	if host, peer := PeerOf(c); host != (Host{}) || peer.String() != "uid=unknown" {
		t.Errorf("a connection that is closed: %v, %s", host, peer)
	}

	near, _ := new(shivatest.Net).Pair("near", "10.1.2.3:4000")
	defer near.Close()
	if host, peer := PeerOf(near); host.String() != "10.1.2.3" || peer != near.RemoteAddr() {
		t.Errorf("in memory: %v and %s; expected %s", host, peer, near.RemoteAddr())
	}
}
