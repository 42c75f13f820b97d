package shiva_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
)

// A Client of several servers, on real sockets where the operating system's behaviour matters.

// A member is one of several servers. Its handler can be replaced, and it can stop and return.
type member struct {
	t      *testing.T
	addr   string
	got    atomic.Int64 // requests, except those made to connect
	handle atomic.Pointer[shivatest.Handler]
	server *shivatest.Server
}

func newMember(t *testing.T) *member {
	m := &member{t: t, addr: "127.0.0.1:0"}
	m.set(shivatest.Echo)
	m.listen()
	t.Cleanup(func() { m.server.Close() })
	return m
}

func (m *member) set(h shivatest.Handler) { m.handle.Store(&h) }

func (m *member) listen() {
	l, err := net.Listen("tcp", m.addr)
	if err != nil {
		m.t.Fatal(err)
	}
	m.addr = l.Addr().String()
	m.server = shivatest.Serve(l, func(c *shivatest.Conn, q *shiva.Message) {
		if q.Namespace == shiva.LiveNamespace {
			shivatest.Echo(c, q)
			return
		}
		m.got.Add(1)
		(*m.handle.Load())(c, q)
	})
}

func three(t *testing.T) []*member { return []*member{newMember(t), newMember(t), newMember(t)} }

func addresses(members []*member) string {
	var list []string
	for _, m := range members {
		list = append(list, m.addr)
	}
	return strings.Join(list, ",")
}

func dial(t *testing.T, addr string, opts ...shiva.Option) *shiva.Client {
	t.Helper()
	c, err := shiva.Dial(t.Context(), addr,
		append([]shiva.Option{shiva.WithBackoff(time.Millisecond, 20*time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// askAny sends one request with a long deadline.
func askAny(t *testing.T, c *shiva.Client, namespace string) error {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := c.Do(ctx, &shiva.Message{Namespace: namespace})
	if err == nil {
		m.Release()
	}
	return err
}

// load sends requests from several goroutines until f has returned, and reports every failed one.
func load(t *testing.T, c *shiva.Client, f func()) {
	t.Helper()
	var wg sync.WaitGroup
	over := make(chan struct{})
	for range 6 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := askAny(t, c, "n"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	f()
	close(over)
	wg.Wait()
}

// awaitMore waits until a server has received n more requests.
func (m *member) awaitMore(n int64) {
	m.t.Helper()
	for end := m.got.Load() + n; m.got.Load() < end && !m.t.Failed(); {
		time.Sleep(time.Millisecond)
	}
}

// TestServerIsKilled: no request is lost when one of three servers dies with requests in flight.
func TestServerIsKilled(t *testing.T) {
	m := three(t)
	c := dial(t, addresses(m), shiva.WithRepeatable())
	load(t, c, func() {
		for _, one := range m {
			one.awaitMore(20)
		}
		swallowed := make(chan struct{}, 100)
		m[0].set(func(*shivatest.Conn, *shiva.Message) { swallowed <- struct{}{} })
		<-swallowed
		m[0].server.Close()
		m[1].awaitMore(50)
		m[2].awaitMore(50)
	})
}

// TestLostAnswer: a request that a server may have executed is not sent again without permission,
// and feedback not even with it.
func TestLostAnswer(t *testing.T) {
	for _, tt := range []struct {
		namespace string
		opts      []shiva.Option
	}{
		{"n", nil}, {"app/update", []shiva.Option{shiva.WithRepeatable()}},
	} {
		m := three(t)
		c := dial(t, addresses(m), tt.opts...)
		for _, one := range m {
			one.set(func(c *shivatest.Conn, _ *shiva.Message) { c.Close() })
		}
		err := askAny(t, c, tt.namespace)
		e, ok := errors.AsType[*shiva.CallError](err)
		if n := m[0].got.Load() + m[1].got.Load() + m[2].got.Load(); !ok || !e.MayHaveRun || n != 1 {
			t.Errorf("%s: error %v after %d attempts, want a CallError that may have run after 1", tt.namespace, err, n)
		}
	}
}

// TestRefusals checks which answers send a request to another server.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		kind      string
		namespace string
		opts      []shiva.Option
		asked     int64 // of the two refusing servers, before the third answers; 3: no third attempt
		twice     bool  // at most two servers are asked
		final     bool  // the error says that it is not retryable
	}{
		{kind: shiva.Draining, asked: 2},
		{kind: shiva.Draining, namespace: "app/update", asked: 2},
		{kind: shiva.Unavailable, asked: 2},
		{kind: shiva.Unavailable, namespace: "app/update", asked: 3},
		{kind: shiva.NotFound, asked: 2, final: true},
		{kind: shiva.Overloaded, asked: 2, twice: true},
		{kind: shiva.ContainerLost, asked: 3},
		{kind: shiva.ContainerLost, opts: []shiva.Option{shiva.WithRepeatable()}, asked: 2, twice: true},
		{kind: shiva.ContainerLost, opts: []shiva.Option{shiva.WithRepeatable()}, asked: 3, final: true},
		{kind: shiva.InvalidInput, asked: 3, final: true},
		{kind: shiva.DeadlineExceeded, asked: 3},
	} {
		m := three(t)
		c := dial(t, addresses(m), tt.opts...)
		for _, one := range m {
			one.awaitLive(c)
		}
		for _, one := range m {
			one.got.Store(0)
		}
		h := shivatest.Fail(&shiva.RemoteError{Type: tt.kind, Message: "no", Retryable: !tt.final})
		m[0].set(h)
		m[1].set(h)
		namespace := tt.namespace
		if namespace == "" {
			namespace = "n"
		}
		for range 30 {
			err := askAny(t, c, namespace)
			e, refused := errors.AsType[*shiva.RemoteError](err)
			switch {
			case err != nil && (!refused || e.Type != tt.kind):
				t.Errorf("%s: error %v", tt.kind, err)
			case tt.asked == 2 && err != nil && !tt.twice:
				t.Errorf("%s %s: %v, want the answer of the third server", tt.kind, namespace, err)
			}
		}
		tries := m[0].got.Load() + m[1].got.Load() + m[2].got.Load()
		switch {
		case tt.asked == 3 && tries != 30:
			t.Errorf("%s %s: %d attempts for 30 requests, want none again", tt.kind, namespace, tries)
		case tt.twice && tries > 60:
			t.Errorf("%s: %d attempts for 30 requests, want 2 for each at most", tt.kind, tries)
		case tt.asked == 2 && tries == 30:
			t.Errorf("%s %s: no request was tried again", tt.kind, namespace)
		}
	}
}

// TestRolling: all three servers are replaced one after the other, and no request is lost, neither
// if each first drains nor, with WithRepeatable, if each ends at once.
func TestRolling(t *testing.T) {
	for _, drains := range []bool{true, false} {
		m := three(t)
		var opts []shiva.Option
		if !drains {
			opts = append(opts, shiva.WithRepeatable())
		}
		c := dial(t, addresses(m), opts...)
		load(t, c, func() {
			for _, one := range m {
				one.awaitMore(10)
				if drains {
					one.set(shivatest.Fail(&shiva.RemoteError{Type: shiva.Draining, Message: "bye", Retryable: true}))
					one.awaitMore(1)
					one.server.Drain()
				} else {
					one.server.Close()
				}
				one.set(shivatest.Echo)
				for _, other := range m {
					if other != one {
						other.awaitMore(10)
					}
				}
				one.listen()
				one.awaitMore(10)
			}
		})
	}
}

// TestSpread: requests go to servers with fewer requests waiting.
func TestSpread(t *testing.T) {
	m := three(t)
	c := dial(t, addresses(m))
	for _, one := range m {
		one.awaitLive(c)
	}
	release := make(chan struct{})
	for _, one := range m {
		one.got.Store(0)
		one.set(func(c *shivatest.Conn, q *shiva.Message) {
			answer := shivatest.Clone(q)
			go func() { <-release; shivatest.Echo(c, answer) }()
		})
	}
	var wg sync.WaitGroup
	for i := range int64(30) {
		wg.Go(func() {
			if err := askAny(t, c, "n"); err != nil {
				t.Error(err)
			}
		})
		for m[0].got.Load()+m[1].got.Load()+m[2].got.Load() <= i {
			time.Sleep(time.Millisecond)
		}
	}
	close(release)
	wg.Wait()
	for _, one := range m {
		// The fuller of two random choices is never chosen: the fullest of three cannot exceed the
		// next by more than one.
		if n := one.got.Load(); n < 8 || n > 12 {
			t.Errorf("a server got %d of 30 requests that waited, want 8 to 12", n)
		}
	}
}

// awaitLive sends requests until the server gets one of the client's.
func (m *member) awaitLive(c *shiva.Client) {
	for n := m.got.Load(); m.got.Load() == n && !m.t.Failed(); {
		if err := askAny(m.t, c, "n"); err != nil {
			m.t.Error(err)
		}
	}
}

// full returns an address that accepts no connection: its queue is full, and nothing empties it.
func full(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		cancel()
		if err != nil {
			return addr
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatal("the queue takes more than 10 connections")
	return ""
}

// mute returns an address that accepts connections and never answers.
func mute(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// TestDeadAddresses: addresses that never accept, never answer or refuse do not delay requests, and
// if there are no others the error has the fault of each.
func TestDeadAddresses(t *testing.T) {
	t.Parallel()
	never, silent := full(t), mute(t)
	gone := newMember(t)
	gone.server.Close()
	good := newMember(t)
	c := dial(t, strings.Join([]string{never, silent, gone.addr, good.addr}, ", "), shiva.WithRepeatable())
	for range 100 {
		if err := askAny(t, c, "n"); err != nil {
			t.Fatal(err)
		}
	}
	_, err := shiva.Dial(t.Context(), strings.Join([]string{never, silent, gone.addr}, ","),
		shiva.WithDialTimeout(200*time.Millisecond))
	e, ok := errors.AsType[*shiva.AttemptsError](err)
	if !ok || len(e.Attempts) < 3 {
		t.Fatalf("error %v, want one with three addresses", err)
	}
	for _, want := range []string{"no answer from any server: ", never + ": ", "i/o timeout",
		silent + ": the server accepts connections but does not answer !live", gone.addr + ": ", "connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q, want %q in it", err, want)
		}
	}
	// The error of a request whose deadline passes while no server is reachable is the same.
	good.server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = c.Do(ctx, &shiva.Message{Namespace: "n"})
	for _, want := range []string{never, silent, gone.addr, good.addr} {
		if err == nil || !strings.Contains(err.Error(), want+": ") && !strings.Contains(err.Error(), want+", ") {
			t.Errorf("error %v, want %s and what is wrong there", err, want)
		}
	}
}

// A balancer is a plain TCP proxy that passes each connection to the next server that accepts it.
type balancer struct {
	net.Listener
	idle    time.Duration // after which a connection is closed; 0: never
	targets []*member
	next    atomic.Uint32
	wg      sync.WaitGroup
}

func newBalancer(t *testing.T, idle time.Duration, targets []*member) *balancer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{Listener: l, idle: idle, targets: targets}
	b.wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.carry(conn) })
		}
	})
	t.Cleanup(b.wg.Wait)
	t.Cleanup(func() { l.Close() })
	return b
}

func (b *balancer) carry(near net.Conn) {
	defer near.Close()
	for range b.targets {
		target := b.targets[int(b.next.Add(1))%len(b.targets)]
		far, err := net.Dial("tcp", target.addr)
		if err != nil {
			continue
		}
		defer far.Close()
		var wg sync.WaitGroup
		copyTo := func(to, from net.Conn) {
			block := make([]byte, 4096)
			for {
				if b.idle > 0 {
					_ = from.SetReadDeadline(time.Now().Add(b.idle))
				}
				n, err := from.Read(block)
				if n > 0 {
					_, _ = to.Write(block[:n])
				}
				if err != nil {
					near.Close()
					far.Close()
					return
				}
			}
		}
		wg.Go(func() { copyTo(far, near) })
		wg.Go(func() { copyTo(near, far) })
		wg.Wait()
		return
	}
}

// TestBalancer: behind one address that balances connections, a request is sent over another
// connection when its own is lost, when the balancer has closed it, and when the server drains.
func TestBalancer(t *testing.T) {
	t.Parallel()
	m := three(t)
	b := newBalancer(t, 0, m)
	c := dial(t, b.Addr().String(), shiva.WithRepeatable())
	reached := func() (list []int64) {
		for _, one := range m {
			list = append(list, one.got.Load())
		}
		return list
	}
	load(t, c, func() {
		for range 6 { // twice the number of servers
			before := reached()
			time.Sleep(time.Millisecond)
			for i, n := range reached() {
				if n > before[i] {
					m[i].set(shivatest.Fail(&shiva.RemoteError{Type: shiva.Draining, Message: "bye", Retryable: true}))
					m[(i+1)%3].awaitMore(1)
					m[i].set(shivatest.Echo)
					break
				}
			}
		}
	})
	c.Close()
	for _, one := range m[1:] {
		one.server.Close()
	}
	idle := newBalancer(t, 5*time.Millisecond, m)
	c = dial(t, idle.Addr().String(), shiva.WithRepeatable())
	for i := range 20 {
		if err := askAny(t, c, "n"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Duration(i%3) * 4 * time.Millisecond)
	}
	if n := len(m[0].server.Conns()); n < 2 {
		t.Errorf("%d connections, want new ones where the balancer has closed them", n)
	}
}

// TestStreamStays: a stream stays with a server while that is alive, and then moves to another.
func TestStreamStays(t *testing.T) {
	m := three(t)
	c := dial(t, addresses(m))
	s, err := c.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "cam"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	frame := func() error {
		if _, err := s.Push(t.Context(), shiva.Frame{}); err != nil {
			t.Fatal(err)
		}
		for a, err := range s.Answers(t.Context()) {
			if err == nil {
				a.Release()
			}
			return err
		}
		return nil
	}
	used := func() (list []*member) {
		for _, one := range m {
			if one.got.Swap(0) > 0 {
				list = append(list, one)
			}
		}
		return list
	}
	for range 20 {
		if err := frame(); err != nil {
			t.Fatal(err)
		}
	}
	one := used()
	if len(one) != 1 {
		t.Fatalf("a stream has used %d servers, want 1", len(one))
	}
	one[0].server.Close()
	for frame() != nil { // frames that were sent are lost
	}
	for range 20 {
		if err := frame(); err != nil {
			t.Fatal(err)
		}
	}
	next := used()
	if len(next) != 1 || next[0] == one[0] {
		t.Fatalf("the stream has gone to %d servers, want another one", len(next))
	}
	// The stream leaves a server that drains, although that still accepts.
	next[0].set(shivatest.Fail(&shiva.RemoteError{Type: shiva.Draining, Message: "bye", Retryable: true}))
	for frame() != nil {
	}
	used()
	for range 20 {
		if err := frame(); err != nil {
			t.Fatal(err)
		}
	}
	if last := used(); len(last) != 1 || last[0] == next[0] {
		t.Errorf("the stream went to %d servers, want the third alone", len(last))
	}
}

// TestName: a name stands for the servers that it resolves to, also when they change. A name that
// cannot be resolved keeps its addresses.
func TestName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n shivatest.Net
		var got [4]atomic.Int64
		for i := range got {
			l, err := n.Listen(fmt.Sprintf("10.0.0.%d:6174", i))
			if err != nil {
				t.Fatal(err)
			}
			s := shivatest.Serve(l, func(c *shivatest.Conn, m *shiva.Message) {
				if m.Namespace != shiva.LiveNamespace {
					got[i].Add(1)
				}
				shivatest.Echo(c, m)
			})
			defer s.Close()
		}
		var mu sync.Mutex
		var ips []string
		var fails error
		resolve := func(_ context.Context, network, host string) (list []netip.Addr, err error) {
			mu.Lock()
			defer mu.Unlock()
			if host != "shivad.example" {
				return nil, errors.New("no such host")
			}
			for _, ip := range ips {
				list = append(list, netip.MustParseAddr(ip))
			}
			return list, fails
		}
		set := func(err error, list ...string) {
			mu.Lock()
			defer mu.Unlock()
			ips, fails = list, err
		}
		// A name that resolves to nothing is an error of its own.
		opts := []shiva.Option{shiva.WithDialer(n.Dial), shiva.WithLookup(resolve)}
		for addr, want := range map[string]string{
			"shivad.example": "looking up shivad.example: the name has no address", "misspelt": "looking up misspelt: no such host"} {
			if _, err := shiva.Dial(t.Context(), addr, opts...); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		set(nil, "10.0.0.0", "10.0.0.1", "fe80::1")
		c, err := shiva.Dial(t.Context(), "shivad.example,misspelt", opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		used := func() (list string) {
			for i := range got {
				got[i].Store(0)
			}
			for range 60 {
				if err := askAny(t, c, "n"); err != nil {
					t.Error(err)
				}
				synctest.Wait()
			}
			for i := range got {
				if got[i].Load() > 0 {
					list += fmt.Sprint(i)
				}
			}
			return list
		}
		synctest.Wait()
		for _, step := range []struct {
			err  error
			ips  []string
			want string
		}{
			{nil, []string{"10.0.0.0", "10.0.0.1"}, "01"},
			{nil, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, "123"},
			{errors.New("the resolver is away"), nil, "123"},
			{nil, nil, "123"},
			{nil, []string{"10.0.0.2"}, "2"},
			{nil, []string{"10.0.0.0", "10.0.0.2"}, "02"},
		} {
			set(step.err, step.ips...)
			time.Sleep(25 * time.Second)
			used() // the first request triggers a lookup of the name
			time.Sleep(time.Second)
			if got := used(); got != step.want {
				t.Errorf("the name has %v (%v), and servers %s are used, want %s", step.ips, step.err, got, step.want)
			}
		}
	})
}

// TestManyServers: with more servers than WithServers allows, a client uses only that many.
func TestManyServers(t *testing.T) {
	m := append(three(t), three(t)...)
	c := dial(t, addresses(m), shiva.WithServers(2))
	used := func() (n int) {
		for _, one := range m {
			if one.got.Load() > 0 {
				n++
			}
		}
		return n
	}
	for used() < 2 {
		if err := askAny(t, c, "n"); err != nil {
			t.Fatal(err)
		}
	}
	for range 60 {
		if err := askAny(t, c, "n"); err != nil {
			t.Fatal(err)
		}
	}
	if n := used(); n != 2 {
		t.Errorf("%d servers are used, want 2", n)
	}
}

// TestAddressLists: an invalid list of addresses is refused with the reason.
func TestAddressLists(t *testing.T) {
	for list, want := range map[string]string{
		",":                           "expected addresses with commas between them",
		"tls://127.0.0.1,unix:":       "a Unix socket without a path",
		"tls://127.0.0.1,127.0.0.1:1": `expected tls://host:port with WithTLS, got "127.0.0.1:1"`,
	} {
		if _, err := shiva.Dial(t.Context(), list, shiva.WithTLS(new(tls.Config))); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", list, err, want)
		}
	}
}
