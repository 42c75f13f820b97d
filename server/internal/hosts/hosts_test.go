package hosts

import (
	"net"
	"net/netip"
	"testing"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3:80":               "10.1.2.3",
		"[::ffff:10.1.2.3]:80":      "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[fe80::1%lo]:80":           "fe80::",
		"[::1]:80":                  "::1",
	} {
		at, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		if got := Of(at).String(); got != want {
			t.Errorf("%s counts as %s, want %s", text, got, want)
		}
	}
	if Of(&net.UnixAddr{Name: "/x"}).IsValid() || Of(nil).IsValid() {
		t.Error("no address of the Internet is a host")
	}
}

func TestCount(t *testing.T) {
	a, b, here := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("127.0.0.1")
	var c Count
	two := NewLimit(2, 100, false)
	for i, want := range []bool{true, true, false} {
		if c.Enter(a, two) != want {
			t.Errorf("each host may have two, and the connection of number %d is let in: %v", i+1, !want)
		}
	}
	if !c.Enter(b, two) {
		t.Error("another host may have two of its own")
	}
	c.Leave(a)
	if !c.Enter(a, two) || c.Enter(a, two) {
		t.Error("what has left makes room for one")
	}
	for range 10 {
		if !c.Enter(here, two) || !c.Enter(netip.Addr{}, two) {
			t.Error("this machine is not bounded")
		}
	}

	// Another limit holds for those that were there before it.
	if c.Enter(here, NewLimit(10, 100, true)) || !c.Enter(here, NewLimit(11, 100, true)) {
		t.Error("this machine's connections from before it was bounded do not count")
	}
	if !c.Enter(a, NewLimit(3, 100, false)) || c.Enter(a, NewLimit(1, 100, false)) {
		t.Error("a host of three does not follow the limit")
	}
	for host, n := range map[netip.Addr]int{a: 3, b: 1, here: 11, {}: 10} {
		for range n {
			c.Leave(host)
		}
	}
	if len(c.open) > 0 {
		t.Errorf("%v are left", c.open)
	}
	if most := NewLimit(0, 9, true).Most; most != 4 {
		t.Errorf("by default half may be one host's: %d", most)
	}
}
