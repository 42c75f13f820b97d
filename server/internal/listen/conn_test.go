package listen

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/shivatest"
)

func TestAddrOf(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3:80":               "10.1.2.3",
		"[::ffff:10.1.2.3]:80":      "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[fe80::1%lo]:80":           "fe80::",
		"[::1]:80":                  "::1",
		"[::1%lo]:80":               "::1",
	} {
		at, err := net.ResolveTCPAddr("tcp", text)
		if err != nil {
			t.Fatal(err)
		}
		// The standard library's address may have another text than the one it was made from.
		for _, one := range []net.Addr{at, shivatest.Addr(text)} {
			if got := addrOf(one).String(); got != want {
				t.Errorf("%T %s counts as %s, want %s", one, text, got, want)
			}
		}
	}
	if addrOf(&net.UnixAddr{Name: "/x"}).IsValid() || addrOf(nil).IsValid() {
		t.Error("no address of the Internet is a host")
	}
}

// config returns the Config of a door called "door", whose limits a test may change meanwhile.
func config(limits *Settings) Config {
	return Config{
		Door: "door", Settings: func() Settings { return *limits },
		Entrance: Entrance{Metrics: metrics.New("test").Door("tcp"), Log: slog.New(slog.DiscardHandler)},
	}
}

func TestLimits(t *testing.T) {
	host := func(addr string) Host { return Host{addr: netip.MustParseAddr(addr)} }
	a, b, here, user := host("10.0.0.1"), host("10.0.0.2"), host("127.0.0.1"), Host{user: 1000, unix: true}
	limits := Settings{Connections: 100, Bounds: Bounds{ConnectionsPerAddress: 2}}
	l := newListener(config(&limits))
	enter := func(host Host) bool {
		_, err := l.enter(host)
		return err == nil
	}
	for i, want := range []bool{true, true, false} {
		if enter(a) != want {
			t.Errorf("each address may have two, and connection %d is let in: %v", i+1, !want)
		}
	}
	if !enter(b) {
		t.Error("another address may have two of its own")
	}
	l.leave(a)
	if !enter(a) || enter(a) {
		t.Error("a connection that has left makes room for one")
	}
	for range 10 {
		if !enter(here) || !enter(user) || !enter(Host{}) {
			t.Error("this machine is not bounded")
		}
	}

	// New limits also count the connections from before the change.
	if limits = (Settings{Connections: 100, Loopback: true, Bounds: Bounds{ConnectionsPerAddress: 10}}); enter(here) ||
		enter(user) {
		t.Error("connections of this machine from before it was bounded do not count")
	}
	if limits.ConnectionsPerAddress = 11; !enter(here) {
		t.Error("this machine has room for one more")
	}
	if limits.ConnectionsPerAddress = 3; !enter(a) {
		t.Error("an address with two has room for a third")
	}
	if limits.ConnectionsPerAddress = 1; enter(a) {
		t.Error("an address of three does not follow the limit")
	}
	if limits.Connections = l.Open() + 1; !enter(Host{}) || enter(Host{}) {
		t.Error("expected room for one more connection of any address")
	}
	for host, n := range map[Host]int{a: 3, b: 1, here: 11, user: 10, {}: 11} {
		for range n {
			l.leave(host)
		}
	}
	if l.Open() != 0 || len(l.hosts) > 0 {
		t.Errorf("%d connections of %v are left", l.Open(), l.hosts)
	}
	for total, want := range map[int]int{9: 4, 1: 1} {
		if most, _ := (Settings{Connections: total}).perAddress(a); most != want {
			t.Errorf("by default half may be of one address, and one at least: %d of %d", most, total)
		}
	}
}

// open returns a listener on a real socket, whose connections are accepted and passed to let.
func open(t *testing.T, cfg Config, let func(*Conn)) *Listener {
	t.Helper()
	budgettest.Goroutines(t)
	if cfg.Addrs == nil {
		cfg.Addrs = []string{"127.0.0.1:0"}
	}
	l, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			let(c)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l
}

func dial(t *testing.T, l *Listener) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// A client that sends more than the socket buffers hold before it reads gets the refusal, and then
// the end of the stream, but no reset.
func TestRefusalIsRead(t *testing.T) {
	cfg := config(&Settings{})
	cfg.Refusal = func(err error) []byte { return []byte("refused: " + err.Error()) }
	l := open(t, cfg, func(c *Conn) { t.Error("let in") })
	c := dial(t, l)
	if _, err := c.Write(make([]byte, lingerBytes)); err != nil {
		t.Errorf("its sending: %v", err)
	}
	text, err := io.ReadAll(c)
	if want := "refused: scheduler: overloaded: too many connections (door.connections = 0)"; err != nil ||
		string(text) != want {
		t.Errorf("%q, %v", text, err)
	}
}

// Lingering connections are bounded, and end with the listener.
func TestLingeringIsBounded(t *testing.T) {
	cfg := config(&Settings{})
	cfg.Refusal = func(error) []byte { return []byte("no") }
	l := open(t, cfg, func(c *Conn) { t.Error("let in") })
	for range maxLingering + 4 {
		c := dial(t, l) // until the end of the test
		if text, err := io.ReadAll(c); err != nil || string(text) != "no" {
			t.Errorf("%q, %v", text, err)
		}
	}
	l.mu.Lock()
	n := len(l.lingering)
	l.mu.Unlock()
	if n > maxLingering {
		t.Errorf("%d linger", n)
	}
	l.Close()
	if len(l.lingering) > 0 {
		t.Errorf("%d linger after the end", len(l.lingering))
	}
}

// Without a Refusal a connection above a limit is closed at once.
func TestRefusalWithoutWords(t *testing.T) {
	l := open(t, config(&Settings{}), func(c *Conn) { t.Error("let in") })
	if n, err := dial(t, l).Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// A connection that leaves makes room, once, however it leaves, and the first reason for it counts.
func TestLeave(t *testing.T) {
	in := make(chan *Conn, 1)
	m := metrics.New("test")
	cfg := config(&Settings{Connections: 1})
	cfg.Metrics = m.Door("tcp")
	l := open(t, cfg, func(c *Conn) { in <- c })
	for range 3 {
		client := dial(t, l)
		c := <-in
		if l.Open() != 1 || cfg.Metrics.Connections() != 1 {
			t.Errorf("%d open, %d counted", l.Open(), cfg.Metrics.Connections())
		}
		c.Because(metrics.ClosedIdle)
		c.Because(metrics.ClosedError)
		c.Leave()
		c.Close()
		c.Close()
		if l.Open() != 0 || cfg.Metrics.Connections() != 0 {
			t.Errorf("%d open, %d counted", l.Open(), cfg.Metrics.Connections())
		}
		client.Close()
	}
}

// A noDescriptors listener fails a few times, and then blocks until it is closed.
type noDescriptors struct {
	net.Listener
	times  atomic.Int32
	closed chan struct{}
}

func (n *noDescriptors) Accept() (net.Conn, error) {
	if n.times.Add(1) <= 12 {
		return nil, errors.New("no descriptor")
	}
	<-n.closed
	return nil, net.ErrClosed
}

func (n *noDescriptors) Close() error {
	close(n.closed)
	return nil
}

// While nothing can be accepted the pauses grow to a second, and Close interrupts a pause.
func TestAcceptPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := &noDescriptors{closed: make(chan struct{})}
		l := newListener(config(&Settings{Connections: 1}), broken)
		l.start()
		began := time.Now()
		ended := make(chan error)
		go func() {
			_, err := l.Accept()
			ended <- err
		}()
		for _, c := range []struct {
			at    time.Duration
			times int32
		}{{4, 1}, {6, 2}, {16, 3}, {1274, 8}, {1276, 9}, {2274, 9}, {2276, 10}, {60_000, 13}} {
			time.Sleep(time.Until(began.Add(c.at * time.Millisecond)))
			synctest.Wait()
			if n := broken.times.Load(); n != c.times {
				t.Fatalf("after %v it has tried %d times, expected %d", c.at*time.Millisecond, n, c.times)
			}
		}
		l.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		broken := &noDescriptors{closed: make(chan struct{})}
		l := newListener(config(&Settings{Connections: 1}), broken)
		l.start()
		time.AfterFunc(2*time.Second, func() { l.Close() }) // in the pause from 1.275 s to 2.275 s
		began := time.Now()
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestClock(t *testing.T) {
	now := time.Unix(1000, 0)
	c := Clock{Began: now, Bytes: 3*setting.MessageRate - 1}
	for timeout, want := range map[time.Duration]time.Time{0: {}, time.Second: now.Add(3 * time.Second)} {
		if due := c.Due(timeout); !due.Equal(want) {
			t.Errorf("%v: due at %v, want %v", timeout, due, want)
		}
	}
	if due := (Clock{}).Due(time.Second); !due.IsZero() {
		t.Errorf("a message that has not begun is due at %v", due)
	}
	if c.Late(now.Add(3*time.Second-1), time.Second) || !c.Late(now.Add(3*time.Second), time.Second) ||
		c.Late(now.Add(time.Hour), 0) {
		t.Error("it is late when it is due, and never without a timeout")
	}
	err := c.Error("door", now.Add(3*time.Second+time.Microsecond), time.Second)
	if !errors.Is(err, scheduler.ErrDeadlineExceeded) || !strings.Contains(err.Error(), "49151 bytes of the message arrived in 3s (door.message_timeout = 1s") {
		t.Error(err)
	}
}
