package listen

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
)

const mostHandshakes = 4

// A guarded listener is a TLS listener, with the authority for its server and its clients.
type guarded struct {
	*Listener
	authority *certtest.Authority
	config    *TLS
	limits    atomic.Pointer[Settings]
}

func newGuarded(t *testing.T, auth string, revoked func(*certtest.Authority) []byte, let func(*Conn)) *guarded {
	t.Helper()
	g := &guarded{authority: certtest.New(t, "authority")}
	g.limits.Store(&Settings{Connections: 100, Handshakes: mostHandshakes, HandshakeTimeout: 10 * time.Second})
	server := g.authority.Server(nil)
	files := []any{"cert", server.Cert, "key", server.Key, "ca", g.authority.PEM()}
	if revoked != nil {
		files = append(files, "crl", revoked(g.authority))
	}
	paths := append(certtest.Write(t, t.TempDir(), files...), "")
	var wrong setting.Faults
	g.config, wrong = TLSFiles{Cert: paths[0], Key: paths[1], ClientCA: paths[2], ClientCRL: paths[3],
		ClientAuth: auth}.Load(time.Now(), nil)
	if err := wrong.Err(); err != nil {
		t.Fatal(err)
	}
	cfg := config(nil)
	cfg.Settings = func() Settings {
		s := *g.limits.Load()
		s.TLS = g.config
		return s
	}
	cfg.Addrs = []string{"tls://127.0.0.1:0"}
	cfg.Refusal = func(err error) []byte { return []byte("refused: " + err.Error()) }
	g.Listener = open(t, cfg, let)
	return g
}

// plain returns a client's connection without a handshake.
func (g *guarded) plain(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", g.Addr().(TLSAddr).TCPAddr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// says returns everything that a client reads after its handshake.
func (g *guarded) says(t *testing.T, own ...certtest.Issue) (string, error) {
	t.Helper()
	cfg := &tls.Config{RootCAs: g.authority.Pool(), ServerName: "localhost"}
	for _, i := range own {
		cfg.Certificates = append(cfg.Certificates, i.Pair(t))
	}
	c := tls.Client(g.plain(t), cfg)
	if _, err := c.Write([]byte("x")); err != nil {
		return "", err
	}
	text, err := io.ReadAll(c)
	return string(text), err
}

// greet tells a client the name in its certificate, and closes the connection.
func greet(c *Conn) {
	name := "nobody"
	if cert := c.PeerCertificate(); cert != nil {
		name = cert.Subject.CommonName
	}
	_, _ = c.Write([]byte("hello, " + name))
	c.Linger()
}

// A client with a good certificate is admitted and identified by it; other clients are told by TLS
// what is wrong with theirs.
func TestPeerCertificates(t *testing.T) {
	var revoked certtest.Issue
	required := newGuarded(t, AuthRequired, func(a *certtest.Authority) []byte {
		revoked = a.Client("stolen", nil)
		return a.Revoke(revoked.Leaf)
	}, greet)
	good := required.authority.Client("camera", nil)
	if text, err := required.says(t, good); text != "hello, camera" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	expired := required.authority.Client("old", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	for name, c := range map[string]struct {
		own  []certtest.Issue
		want string
	}{
		"none":       {nil, "certificate required"},
		"expired":    {[]certtest.Issue{expired}, "expired certificate"},
		"of another": {[]certtest.Issue{certtest.New(t, "other").Client("camera", nil)}, "certificate"},
		"a server's": {[]certtest.Issue{required.authority.Server(nil)}, "bad certificate"},
		"revoked":    {[]certtest.Issue{revoked}, "bad certificate"},
	} {
		if text, err := required.says(t, c.own...); text != "" || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %q, %v, want %q", name, text, err, c.want)
		}
	}
	optional := newGuarded(t, AuthOptional, nil, greet)
	if text, err := optional.says(t); text != "hello, nobody" || err != nil {
		t.Errorf("without a certificate: %q, %v", text, err)
	}
	if text, err := optional.says(t, optional.authority.Client("camera", nil)); text != "hello, camera" || err != nil {
		t.Errorf("with one: %q, %v", text, err)
	}
	budgettest.Until(t, "connections to end", func() bool { return required.Open() == 0 && optional.Open() == 0 })
}

// A client that does not speak TLS is told so on the door's wire, and a client above a limit reads
// the reason after its handshake.
func TestRefusalsOfTLS(t *testing.T) {
	g := newGuarded(t, AuthNone, nil, greet)
	c := g.plain(t)
	if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(c); err != nil || !strings.Contains(string(text), `refused: scheduler: invalid input: this address speaks TLS: expected a TLS handshake, got the bytes "GET /"`) {
		t.Errorf("%q, %v", text, err)
	}
	g.limits.Store(new(Settings))
	if text, err := g.says(t); err != nil || !strings.Contains(text, "too many connections (door.connections = 0)") {
		t.Errorf("%q, %v", text, err)
	}
}

// Unfinished handshakes are bounded in number and time, those of the host with the most are closed
// first, and they end with the listener.
func TestUnfinishedHandshakes(t *testing.T) {
	g := newGuarded(t, AuthNone, nil, greet)
	var silent []net.Conn
	for i := range 20 {
		silent = append(silent, g.plain(t))
		budgettest.Until(t, "it to be let in", func() bool { return g.Open() == min(i+1, mostHandshakes) })
	}
	if text, err := g.says(t); text != "hello, nobody" || err != nil {
		t.Errorf("beside silent ones: %q, %v", text, err)
	}
	for _, c := range silent[:20-mostHandshakes] {
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one of a crowd stays: %v", err)
		}
	}
	g.limits.Store(&Settings{Connections: 100, Handshakes: mostHandshakes, HandshakeTimeout: 50 * time.Millisecond})
	slow := g.plain(t)
	began := time.Now()
	if _, err := slow.Write([]byte{22}); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Read(make([]byte, 1)); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("a slow one stays: %v", err)
	}
	g.Close()
	budgettest.Until(t, "the rest to end", func() bool { return g.Open() == 0 })
	if n := len(g.unfinished); n > 0 {
		t.Errorf("%d are left", n)
	}
}

// A closing is a socket that can only be closed.
type closing struct {
	net.Conn
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// When there are too many handshakes, one of the host with the most is closed: not the oldest of
// all, and never one that has just begun.
func TestWhoseHandshakeGivesWay(t *testing.T) {
	l := newListener(config(&Settings{Handshakes: 4}))
	var all []*Conn
	for _, c := range []struct {
		host  byte
		given int // index of the handshake that is closed for it; -1: none
	}{
		{1, -1}, {2, -1}, {2, -1}, {2, -1}, // host 1 is the oldest, host 2 the crowd
		{3, 1}, {1, 2}, // host 1 has two now
		{4, 0}, {2, 3}, // host 2 has no more than the others, and its last one is the oldest
	} {
		one := &Conn{host: Host{addr: netip.AddrFrom4([4]byte{10, 0, 0, c.host})}, socket: new(closing), listener: l}
		all = append(all, one)
		if !l.begin(one) {
			t.Fatal("the listener is closed")
		}
		if len(l.unfinished) > 4 {
			t.Errorf("%d wait", len(l.unfinished))
		}
		for i, other := range all {
			waits, closed := slices.Contains(l.unfinished, other), other.socket.(*closing).closed
			if i == c.given && (waits || !closed) {
				t.Errorf("connection %d: expected %d to give way", len(all)-1, i)
			}
			if waits == closed {
				t.Errorf("connection %d: %d waits: %v, is closed: %v", len(all)-1, i, waits, closed)
			}
		}
	}
}

// Among a host's handshakes the one whose client has been waited for longest is closed, whenever it
// began: the time that a client waits for a slot does not count against it, and the waits for a
// client that sends a byte now and then add up.
func TestWhoIsWaitedForLongestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListener(config(&Settings{Handshakes: 3}))
		begin := func() *Conn {
			c := &Conn{socket: new(closing), listener: l}
			if !l.begin(c) {
				t.Fatal("the listener is closed")
			}
			return c
		}
		busy := begin()
		busy.wire.peer.stop() // waiting for a slot
		time.Sleep(time.Second)
		dribbles := begin()
		for range 10 {
			time.Sleep(time.Second)
			dribbles.wire.peer.stop()
			dribbles.wire.peer.start()
		}
		silent := begin()
		time.Sleep(5 * time.Second)
		begin()
		busy.wire.peer.start()
		time.Sleep(time.Second)
		begin()
		for i, c := range []*Conn{dribbles, silent} {
			if slices.Contains(l.unfinished, c) || !c.socket.(*closing).closed {
				t.Errorf("%d, which has been waited for, stays", i)
			}
		}
		if !slices.Contains(l.unfinished, busy) || busy.socket.(*closing).closed {
			t.Error("the oldest, which has been waited for least, has given way")
		}
	})
}

// A handshake has a time limit, which does not apply after it.
func TestHandshakeTimeout(t *testing.T) {
	const timeout = 10 * time.Second
	meet := func(t *testing.T, speak func(net.Conn, *certtest.Authority)) (*Conn, bool) {
		authority := certtest.New(t, "authority") // in virtual time
		pair := authority.Server(nil).Pair(t)
		l := newListener(config(&Settings{Connections: 1, Handshakes: 4, HandshakeTimeout: timeout,
			TLS: &TLS{Config: &tls.Config{Certificates: []tls.Certificate{pair}}}}))
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		go speak(far, authority)
		c := &Conn{Conn: near, socket: near, listener: l, peer: near.RemoteAddr()}
		if _, err := l.enter(c.host); err != nil || !l.begin(c) {
			return c, false
		}
		return c, l.shake(c)
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if _, ok := meet(t, func(c net.Conn, _ *certtest.Authority) { _, _ = c.Write([]byte{22}) }); ok ||
			time.Since(began) != timeout {
			t.Errorf("a client that says no more: %v after %v", ok, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c, ok := meet(t, func(c net.Conn, authority *certtest.Authority) {
			client := tls.Client(c, &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"})
			if client.Handshake() != nil {
				return // the other end says why
			}
			go func() { _, _ = io.Copy(io.Discard, client) }() // discard further TLS messages
			time.Sleep(2 * timeout)
			_, _ = io.WriteString(client, "late")
		})
		if !ok {
			t.Fatal("the handshake has failed")
		}
		text := make([]byte, 4)
		if _, err := io.ReadFull(c, text); err != nil || string(text) != "late" {
			t.Errorf("%q, %v", text, err)
		}
		if _, err := c.Write([]byte("answer")); err != nil {
			t.Error(err)
		}
		c.Close()
	})
}

// A watched connection checks that a handshake holds no slot while it reads or writes.
type watched struct {
	net.Conn
	t *testing.T
}

func (w watched) Read(p []byte) (int, error) {
	if len(slots) > 0 {
		w.t.Error("a handshake waits for its client, and has a slot")
	}
	return w.Conn.Read(p)
}

func (w watched) Write(p []byte) (int, error) {
	if len(slots) > 0 {
		w.t.Error("a handshake waits for room, and has a slot")
	}
	return w.Conn.Write(p)
}

// A handshake computes with a slot, and waits for its client without one, both to read and to
// write. Reads after the handshake take no slot.
func TestTurnsOfHandshakes(t *testing.T) {
	authority := certtest.New(t, "authority")
	near, far := net.Pipe()
	defer far.Close()
	go func() {
		client := tls.Client(far, &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"})
		_, _ = client.Write([]byte("question"))
		_, _ = io.Copy(io.Discard, client)
	}()
	calculated := false
	pair := authority.Server(nil).Pair(t)
	c, err := Handshake(watched{near, t},
		&tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			calculated = true
			if len(slots) != 1 {
				t.Errorf("%d slots are taken while a handshake calculates", len(slots))
			}
			return &pair, nil
		}})
	if err != nil || !calculated || len(slots) > 0 {
		t.Fatalf("%v, %v, %d slots are left", err, calculated, len(slots))
	}
	if n, err := c.Read(make([]byte, 100)); n != len("question") || err != nil || len(slots) > 0 {
		t.Errorf("%d bytes, %v, %d slots are taken by what has read them", n, err, len(slots))
	}
	c.Close()
}
