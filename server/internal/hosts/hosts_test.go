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

func TestLimit(t *testing.T) {
	a, b, here := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("127.0.0.1")
	l := NewLimit(2, 100, false)
	for i, want := range []bool{true, true, false} {
		if l.Enter(a) != want {
			t.Errorf("each host may have two, and the connection of number %d is let in: %v", i+1, !want)
		}
	}
	if !l.Enter(b) {
		t.Error("another host may have two of its own")
	}
	l.Leave(a)
	if !l.Enter(a) || l.Enter(a) {
		t.Error("what has left makes room for one")
	}
	for range 10 {
		if !l.Enter(here) || !l.Enter(netip.Addr{}) {
			t.Error("this machine is not bounded")
		}
	}
	for range 2 {
		l.Leave(a)
	}
	l.Leave(b)
	if len(l.open) > 0 {
		t.Errorf("%v are left", l.open)
	}
	if l = NewLimit(0, 9, true); l.Most() != 4 || !l.Enter(here) || len(l.open) != 1 {
		t.Errorf("by default half may be one host's: %d", l.Most())
	}
}
