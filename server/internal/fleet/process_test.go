package fleet

import (
	"slices"
	"testing"
)

// A process registers at one address.
func TestNearest(t *testing.T) {
	const tcp, unix, secure = "tcp://127.0.0.1:7000", "ipc:///run/s", "tls://127.0.0.1:7443"
	for _, c := range []struct {
		addrs []string
		user  string
		want  []string
	}{
		{[]string{tcp, unix}, "", []string{unix}},
		{[]string{unix, tcp}, "nobody", []string{tcp}},
		{[]string{unix}, "nobody", []string{unix}},
		{[]string{tcp, "tcp://192.0.2.1:7000"}, "", []string{tcp}},
		{[]string{secure}, "", []string{secure}},
		{[]string{secure}, "nobody", []string{secure}},
		{nil, "", nil},
	} {
		if got := nearest(c.addrs, c.user); !slices.Equal(got, c.want) {
			t.Errorf("of %q as %q: %q, want %q", c.addrs, c.user, got, c.want)
		}
	}
}
