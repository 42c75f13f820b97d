package containers_test

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

// trusted returns a server's handshake, which processes started from now on trust through their
// environment.
func trusted(t *testing.T) func(net.Conn) (*tls.Conn, error) {
	t.Helper()
	authority := certtest.New(t, "authority")
	t.Setenv(container.TLSCAEnv, certtest.Write(t, t.TempDir(), "ca.pem", authority.PEM())[0])
	config := &tls.Config{Certificates: []tls.Certificate{authority.Server(nil).Pair(t)}}
	return func(c net.Conn) (*tls.Conn, error) {
		t := tls.Server(c, config)
		return t, t.Handshake()
	}
}

// TestUnfinishedHandshakes: unfinished TLS handshakes are bounded in time and number, like
// unregistered connections.
func TestUnfinishedHandshakes(t *testing.T) {
	const handshakes = 4
	for _, first := range []string{"", "\x16", "\x16\x03\x01\x02\x00\x01", "GET / HTTP/1.1\r\n\r\n"} {
		r := newRig(t, containers.Config{
			Addrs: []string{"tls://127.0.0.1:0"}, Secure: trusted(t),
			Settings: containers.Settings{HandshakeTimeout: 50 * time.Millisecond,
				Limits: containers.Limits{Handshakes: handshakes}},
		})
		for range 3 * handshakes {
			c, err := net.Dial("tcp", strings.TrimPrefix(r.Addrs()[0].String(), "tls://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, first)
		}
		budgettest.Until(t, "all to be ended", func() bool {
			s := r.Stats()
			return s.Strangers == 3*handshakes && s.Sessions == 0
		})
		r.Close()
	}
}

// TestAddressesOfTLS: an address needs a handshake, shows that it is TLS, and is given to processes
// of this machine where there is no other.
func TestAddressesOfTLS(t *testing.T) {
	secure := trusted(t)
	if _, err := containers.Listen(containers.Config{Addrs: []string{"tls://127.0.0.1:0"},
		Scheduler: newRig(t, containers.Config{}).sched}); err == nil || !strings.Contains(err.Error(), `address "tls://127.0.0.1:0" needs Config.Secure`) {
		t.Errorf("without a handshake: %v", err)
	}
	alone := newRig(t, containers.Config{Addrs: []string{"tls://:0"}, Secure: secure})
	a := alone.Addrs()[0]
	_, port, err := net.SplitHostPort(strings.TrimPrefix(a.String(), "tls://"))
	if err != nil || a.Network() != "tls" || !strings.HasPrefix(a.String(), "tls://[::]:") {
		t.Errorf("%s %s, %v", a.Network(), a, err)
	}
	if got := alone.Dialable(); len(got) != 1 || got[0] != "tls://127.0.0.1:"+port {
		t.Errorf("alone: %q", got)
	}
	if got := newRig(t, containers.Config{Addrs: []string{"tls://:0", "tcp://127.0.0.1:0"}, Secure: secure}).
		Dialable(); len(got) != 1 || !strings.HasPrefix(got[0], "tcp://") {
		t.Errorf("beside a plain one: %q", got)
	}
	if _, err := containers.Dial(containers.DialConfig{Name: "old", Addr: "tls://127.0.0.1:1"}); err == nil ||
		!strings.Contains(err.Error(), "speaks no TLS") {
		t.Errorf("a container of v0: %v", err)
	}
}
