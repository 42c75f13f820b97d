package tcp

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// socketPair returns the two ends of a connection.
func socketPair(t *testing.T, network, addr string) (near, far net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if far, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	if near, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close() })
	return near, far
}

// The kind of a socket decides: a Unix socket has no acknowledgements, and its buffer is as large
// as the system allows. A connection without a descriptor, or a closed one, is refused.
func TestPollableOf(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(t.TempDir(), "s")} {
		near, _ := socketPair(t, network, addr)
		w, err := pollableOf(near)
		if err != nil {
			t.Fatal(err)
		}
		d := w.(*descriptor)
		if d.local != (network == "unix") {
			t.Errorf("%s: on this machine: %v", network, d.local)
		}
		if network == "unix" {
			text, err := os.ReadFile("/proc/sys/net/core/wmem_max")
			if err != nil {
				t.Fatal(err)
			}
			most, _ := strconv.Atoi(strings.TrimSpace(string(text)))
			// The system doubles the size, for its own use.
			if n, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil ||
				n < 2*min(most, socketBuffer) {
				t.Errorf("a buffer of %d bytes, %v; expected %d", n, err, 2*min(most, socketBuffer))
			}
		}
		near.Close()
		if w, err := pollableOf(near); err == nil {
			t.Errorf("%s: a closed one is %v", network, w)
		}
	}
	near, _ := net.Pipe()
	defer near.Close()
	if _, err := pollableOf(near); err == nil || err.Error() != "tcp: a *net.pipe has no file descriptor" {
		t.Errorf("a pipe: %v", err)
	}
}

// A connection that is lost before it has a session frees its place in the limits.
func TestLostWhileItIsLetIn(t *testing.T) {
	n := new(shivatest.Net)
	r := newRigAt(t, "memory", func(c *Config) {
		c.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) {
			l, err := n.Listen(addr)
			return withoutDescriptors{l}, err
		}
	})
	c, err := n.DialFrom(t.Context(), "127.0.0.1:5000", "memory")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("read %d bytes", n)
	}
	budgettest.Until(t, "its place to be free", func() bool { return r.open() == 0 })
}

// withoutDescriptors accepts connections that have only the methods of net.Conn.
type withoutDescriptors struct{ net.Listener }

func (w withoutDescriptors) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	return struct{ net.Conn }{c}, err
}

// Connections are spread over the loops.
func TestLoopsHaveTheirShare(t *testing.T) {
	r := newUnixRig(t, func(c *Config) { c.Loops = 3 })
	r.model("m", floats("x"), r.Echo)
	for range 6 {
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next()) // it has a session
	}
	for i, l := range r.loops() {
		l.turns.Lock()
		if n := len(l.sessions); n != 2 {
			t.Errorf("loop %d has %d of 6 connections, expected 2", i, n)
		}
		l.turns.Unlock()
	}
}

// A wake-up that arrives before a loop waits for one is not lost.
func TestEarlyWakeUp(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the loop starts when this goroutine waits
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(newRig(t, nil).door, 1)
		l := s.loops[0]
		l.wake()
		synctest.Wait()
		l.turns.Lock()
		if l.ended.IsZero() {
			t.Error("it has taken no turn")
		}
		l.turns.Unlock()
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
}

// Waking a loop that is in a long turn does not block, however often.
func TestWakeUpsDoNotWait(t *testing.T) {
	s := newSockets(newRig(t, nil).door, 1)
	l := s.loops[0]
	var done atomic.Bool
	func() {
		l.turns.Lock()
		defer l.turns.Unlock()
		go func() {
			for range 3 { // one is taken, and one more waits
				l.wake()
			}
			done.Store(true)
		}()
		budgettest.Until(t, "three wake-ups", done.Load)
	}()
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}

// A session knows its client's address, which logs contain, with and without TLS.
func TestPeer(t *testing.T) {
	for _, name := range []string{"tcp", "tls"} {
		r := transports[name](t, nil)
		r.model("m", floats("x"), r.Echo)
		c := r.dial()
		c.send(message("m", "", 1, 2, 3, 4))
		values(t, c.next())
		want := c.client.(net.Conn).LocalAddr().String()
		onlySession(r, func(s *session) {
			if got := s.transport.Peer(); got != want {
				t.Errorf("%s: the peer is %q, expected %q", name, got, want)
			}
		})
	}
}

// A spy remembers the buffer of the last read; nil: that read returned nothing.
type spy struct {
	medium
	last atomic.Pointer[byte]
}

func (s *spy) TryRead(p []byte) (int, error) {
	n, err := s.medium.TryRead(p)
	if s.last.Store(nil); n > 0 {
		s.last.Store(&p[0])
	}
	return n, err
}

// A paused connection holds no buffer: another connection that has taken the buffer meanwhile keeps
// its contents.
func TestPauseKeepsNoBuffer(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // with several, each has its own part of the pool
	synctest.Test(t, func(t *testing.T) {
		l := access.Limits{Burst: 40 * time.Millisecond}
		l.Of[access.RequestsPerSecond] = 1
		var who access.Addresses
		who.Configure(l, true)
		r := newRig(t, func(c *Config) { c.Addresses = &who })
		r.model("m", floats("x"), r.Echo)
		c := r.dial()
		question, err := shiva.AppendMessage(nil, message("m", "", 1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		var s *spy
		c.bytes(question)
		c.next()
		synctest.Wait() // no goroutine reads while this one changes the input
		onlySession(r, func(one *session) {
			k := one.transport.(*socket)
			s = &spy{medium: k.medium}
			k.medium = s
		})
		held := map[*byte]*[64 << 10]byte{}
		taken := 0
		for range 100 {
			c.bytes(question)
			synctest.Wait()
			for { // until it has read, is refused, and is paused
				last := s.last.Load()
				if last == nil {
					break
				}
				if held[last] != nil {
					t.Fatal("it reads into a buffer that another one has")
				}
				for range 4 {
					p := buffers.Get().(*[64 << 10]byte)
					held[&p[0]] = p
				}
				if held[last] != nil {
					taken++
				}
				time.Sleep(l.Burst) // longer than a turn
				synctest.Wait()
			}
			c.next()
		}
		if taken == 0 {
			t.Error("no buffer came back while the connection waited")
		}
		for _, p := range held {
			buffers.Put(p)
		}
	})
}
