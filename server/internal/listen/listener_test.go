package listen

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// inMemory makes a door listen on a network in memory, on which a test chooses the clients'
// addresses.
func inMemory(t *testing.T, cfg Config, addrs ...string) (*Listener, *shivatest.Net) {
	t.Helper()
	wire := new(shivatest.Net)
	cfg.Addrs = addrs
	cfg.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return wire.Listen(addr) }
	l, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l, wire
}

// closed reports whether the metrics have one connection that was closed for this reason.
func closed(m *metrics.Metrics, why string) bool {
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return strings.Contains(w.Body.String(), fmt.Sprintf(`connections_closed_total{door="tcp",reason=%q} 1`, why))
}

// A listener with several addresses has all of them, in their order, or none.
func TestSeveralAddresses(t *testing.T) {
	l, wire := inMemory(t, config(&Settings{Connections: 1}), "one", "two")
	if all := l.All(); len(all) != 2 || all[0].String() != "one" || all[1].String() != "two" || l.Addr() != all[0] {
		t.Errorf("it listens on %v, first on %v", l.All(), l.Addr())
	}
	cfg := config(&Settings{})
	cfg.Addrs = []string{"three", "two"}
	cfg.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return wire.Listen(addr) }
	if _, err := Listen(cfg); err == nil || !strings.HasPrefix(err.Error(), "door: ") {
		t.Errorf("an address that is taken: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, addr := range []string{"one", "two", "three"} {
		one, err := wire.Listen(addr)
		if err != nil {
			t.Errorf("afterwards: %v", err)
			continue
		}
		one.Close()
	}
}

// Each limit has its own reason in the metrics and its own text for the client, and for one host
// its own limit comes first. Refused connections count as opened and as closed.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := metrics.New("test")
		cfg := config(&Settings{Connections: 2, Bounds: Bounds{ConnectionsPerAddress: 1}})
		cfg.Metrics = m.Door("tcp")
		cfg.Refusal = func(err error) []byte { return []byte(err.Error()) }
		l, wire := inMemory(t, cfg, "here")
		defer l.Close()
		enter := func(from string) *shivatest.Link {
			c, err := wire.DialFrom(t.Context(), from, "here")
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, from := range []string{"10.0.0.1:1", "10.0.0.2:1"} {
			defer enter(from).Close()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.RemoteAddr().String() != from || c.Host().String() != strings.TrimSuffix(from, ":1") ||
				c.Door() != l.Addr() || c.Account() != nil {
				t.Errorf("%s of %s at %s, account %v", c.RemoteAddr(), c.Host(), c.Door(), c.Account())
			}
		}
		for _, c := range []struct{ from, text, why string }{
			{"10.0.0.1:2", "from your address (door.connections_per_address = 1)", "address_limit"},
			{"10.0.0.3:1", "too many connections (door.connections = 2)", "connection_limit"},
		} {
			client := enter(c.from)
			text, err := io.ReadAll(client)
			client.Close()
			if err != nil || !strings.Contains(string(text), c.text) || !closed(m, c.why) {
				t.Errorf("%s: %q, %v; in the metrics %v", c.from, text, err, closed(m, c.why))
			}
		}
		if cfg.Metrics.Connections() != 2 || l.Open() != 2 {
			t.Errorf("%d are counted, %d open", cfg.Metrics.Connections(), l.Open())
		}
		time.Sleep(2 * lingerTime)
	})
}

// A connection that is admitted but not yet accepted when the door closes is closed, with a reason.
// The end of a door is no fault, and not logged.
func TestCloseBeforeAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		m := metrics.New("test")
		cfg := config(&Settings{Connections: 2})
		cfg.Metrics, cfg.Log = m.Door("tcp"), slog.New(slog.NewTextHandler(&log, nil))
		l, wire := inMemory(t, cfg, "here")
		c, err := wire.DialFrom(t.Context(), "10.0.0.1:1", "here")
		if err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); l.Open() != 1 {
			t.Errorf("%d are open", l.Open())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err == nil || l.Open() != 0 || !closed(m, "draining") {
			t.Errorf("%v; %d are open, in the metrics %v", err, l.Open(), closed(m, "draining"))
		}
		if log.Len() > 0 {
			t.Errorf("the log is %q", &log)
		}
	})
}

// Close does not wait for clients: neither for lingering connections nor for handshakes.
func TestCloseWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := config(&Settings{Handshakes: 1})
		cfg.Refusal = func(error) []byte { return []byte("no") }
		l := newListener(cfg)
		var wire shivatest.Net
		lingers, far := wire.Pair("lingers", "far")
		defer far.Close()
		l.refuse(lingers, errors.New("no"))
		shakes, other := wire.Pair("shakes", "other")
		if !l.begin(&Conn{Conn: shakes, socket: shakes, listener: l}) {
			t.Error("no handshake begins")
		}
		began := time.Now()
		if err := l.Close(); err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if !far.Gone() || !other.Gone() {
			t.Errorf("what lingers is closed: %v, what shakes hands: %v", far.Gone(), other.Gone())
		}
		if l.begin(&Conn{Conn: shakes, socket: shakes, listener: l}) {
			t.Error("a handshake begins after the end")
		}
	})
}

// The accounts of hosts exist as long as their connections, and that of this machine is not bounded
// unless the settings say so.
func TestAccountsOfHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all access.Addresses
		limits := access.Limits{}
		limits.Of[access.RequestsInFlight] = 1
		all.Configure(limits, false)
		cfg := config(&Settings{Connections: 100})
		cfg.Addresses = &all
		l, wire := inMemory(t, cfg, "here")
		defer l.Close()
		for from, want := range map[string]bool{"10.0.0.1:1": false, "127.0.0.1:1": true, "nowhere": true} {
			client, err := wire.DialFrom(t.Context(), from, "here")
			if err != nil {
				t.Fatal(err)
			}
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			var one, two access.Use
			payers := access.Payers{c.Account()}
			first, second := c.Charge(&one, payers, 1, time.Now()), c.Charge(&two, payers, 1, time.Now())
			if first != nil || (second == nil) != want {
				t.Errorf("%s: %v and %v, expected both to be let in: %v", from, first, second, want)
			}
			one.End()
			two.End()
			client.Close()
			c.Close()
		}
	})
}

// A flaky listener fails a few times before each connection.
type flaky struct {
	net.Listener
	fails int
	count int
	gone  chan struct{}
	wire  shivatest.Net
}

func (f *flaky) Accept() (net.Conn, error) {
	select {
	case <-f.gone:
		return nil, net.ErrClosed
	default:
	}
	if f.count++; f.count%(f.fails+1) != 0 {
		return nil, errors.New("no descriptor")
	}
	near, _ := f.wire.Pair("near", "far")
	return near, nil
}

func (f *flaky) Addr() net.Addr { return shivatest.Addr("here") }

func (f *flaky) Close() error {
	close(f.gone)
	return nil
}

// After a successful accept the pauses start over.
func TestPausesBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{fails: 3, gone: make(chan struct{})}
		l := newListener(config(&Settings{Connections: 100}), f)
		l.start()
		for i := range 3 {
			began := time.Now()
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			if took := time.Since(began); took != 35*time.Millisecond {
				t.Errorf("connection %d came after %v, expected 5, 10 and 20 ms", i, took)
			}
		}
		l.Close()
	})
}
