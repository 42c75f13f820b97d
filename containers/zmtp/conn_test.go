package zmtp_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/tensor"
)

// transports returns a connected pair over every kind of connection.
var transports = []struct {
	name string
	pair func(t testing.TB) (server, client net.Conn)
}{
	{"tcp", func(t testing.TB) (net.Conn, net.Conn) { return socketPair(t, "tcp", "127.0.0.1:0") }},
	{"unix", func(t testing.TB) (net.Conn, net.Conn) { return socketPair(t, "unix", t.TempDir()+"/s") }},
	{"memory", func(t testing.TB) (net.Conn, net.Conn) { return containertest.Pipe() }},
	{"tls", func(t testing.TB) (net.Conn, net.Conn) { return encrypted(t, "tcp", "127.0.0.1:0") }},
}

// A secured socket is one on which TLS is spoken.
type secured struct {
	net.Conn
	secure func(net.Conn) (net.Conn, error)
}

// with returns the bare socket, and the configuration with its TLS.
func with(conn net.Conn, cfg zmtp.Config) (net.Conn, zmtp.Config) {
	if s, ok := conn.(secured); ok {
		cfg.Secure = s.secure
		return s.Conn, cfg
	}
	return conn, cfg
}

func encrypted(t testing.TB, network, addr string) (server, client net.Conn) {
	t.Helper()
	server, client = socketPair(t, network, addr)
	return secure(t, server, client)
}

// secure turns a connected pair into a pair with TLS.
func secure(t testing.TB, server, client net.Conn) (secured, secured) {
	t.Helper()
	authority := certtest.New(t, "authority")
	own := &tls.Config{Certificates: []tls.Certificate{authority.Server(nil).Pair(t)}}
	trust := &tls.Config{RootCAs: authority.Pool(), ServerName: "localhost"}
	return secured{server, func(c net.Conn) (net.Conn, error) {
			t := tls.Server(c, own)
			return t, t.Handshake()
		}}, secured{client, func(c net.Conn) (net.Conn, error) {
			t := tls.Client(c, trust)
			return t, t.Handshake()
		}}
}

func socketPair(t testing.TB, network, addr string) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err = net.Dial(network, l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// open shakes hands on both ends.
func open(t testing.TB, server, client net.Conn, cfg zmtp.Config) (s, c *zmtp.Conn) {
	t.Helper()
	var wg sync.WaitGroup
	var cerr error
	wg.Go(func() { c, cerr = zmtp.Client(with(client, cfg)) })
	s, err := zmtp.Server(with(server, cfg))
	wg.Wait()
	if err != nil || cerr != nil {
		t.Fatalf("server: %v, client: %v", err, cerr)
	}
	t.Cleanup(func() {
		s.Close()
		c.Close()
	})
	return s, c
}

func send(t testing.TB, c *zmtp.Conn, frames ...[]byte) {
	t.Helper()
	var o zmtp.Outgoing
	for _, f := range frames {
		o.Frame(f)
	}
	if err := c.Send(&o); err != nil {
		t.Fatal(err)
	}
}

func receive(t testing.TB, c *zmtp.Conn) [][]byte {
	t.Helper()
	var m zmtp.Message
	if err := c.Receive(&m); err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	var frames [][]byte
	for _, f := range m.Frames {
		frames = append(frames, bytes.Clone(f.Data))
	}
	return frames
}

func pattern(n int) []byte {
	b := make([]byte, n)
	const period = 256 << 3
	for i := range min(n, period) {
		b[i] = byte(i * 31 >> 3)
	}
	for done := period; done < n; done *= 2 {
		copy(b[done:], b[:done])
	}
	return b
}

// TestEcho sends messages of every critical size both ways, over every transport.
func TestEcho(t *testing.T) {
	sizes := []int{0, 1, 255, 256, 1023, 1024, 1025, 8191, 8192, 8193, 16383, 16384, 16385, 65535, 65536, 65537,
		1<<20 - 1, 6<<20 + 3}
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			a, b := tr.pair(t)
			pool := tensor.NewPool(1 << 30)
			s, c := open(t, a, b, zmtp.Config{Pool: pool})
			var wg sync.WaitGroup
			wg.Go(func() { // the echo
				var in zmtp.Message
				for s.Receive(&in) == nil {
					sent := make(chan error, 1)
					o := zmtp.Outgoing{Done: func(err error) { sent <- err }}
					for _, f := range in.Frames {
						o.Frame(f.Data)
					}
					if s.Send(&o) != nil || <-sent != nil {
						return
					}
					in.Release()
				}
			})
			for _, n := range sizes {
				want := [][]byte{pattern(n), {}, pattern(n / 2), []byte("end")}
				send(t, c, want...)
				got := receive(t, c)
				if len(got) != len(want) {
					t.Fatalf("size %d: %d frames, expected %d", n, len(got), len(want))
				}
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Fatalf("size %d: frame %d differs (%d bytes, expected %d)", n, i, len(got[i]), len(want[i]))
					}
				}
			}
			c.Close()
			wg.Wait()
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes not given back", n)
			}
		})
	}
}

// TestOneWrite counts the system calls: a message of many large pieces leaves in one.
func TestOneWrite(t *testing.T) {
	a, b := socketPair(t, "tcp", "127.0.0.1:0")
	s, c := open(t, a, b, zmtp.Config{})
	for i := range 3 {
		before := s.Writes()
		var o zmtp.Outgoing
		o.FrameString("batch")
		o.Begin(64 * 2048)
		for range 64 {
			o.Add(pattern(2048))
		}
		if err := s.Send(&o); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, c); len(got) != 2 || len(got[1]) != 64*2048 {
			t.Fatal("wrong message")
		}
		if n := s.Writes() - before; n != 1 {
			t.Errorf("message %d took %d writes, expected 1", i, n)
		}
	}
}

// TestSealed builds frames whose size is not known beforehand.
func TestSealed(t *testing.T) {
	a, b := containertest.Pipe()
	s, c := open(t, a, b, zmtp.Config{})
	for _, n := range []int{0, 1, 255, 256, 5000} {
		var o zmtp.Outgoing
		o.FrameString("x")
		o.Seal(append(o.Open(), pattern(n)...))
		o.Frame(pattern(3000))
		if err := s.Send(&o); err != nil {
			t.Fatal(err)
		}
		got := receive(t, c)
		if len(got) != 3 || !bytes.Equal(got[1], pattern(n)) || !bytes.Equal(got[2], pattern(3000)) {
			t.Errorf("size %d came out wrong", n)
		}
	}
}

// TestDone: every message that was taken is reported once, written or given up.
func TestDone(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			a, b := tr.pair(t)
			s, c := open(t, a, b, zmtp.Config{})
			var mu sync.Mutex
			written, lost := 0, 0
			big := make([]byte, 4<<20)
			for range 6 {
				o := &zmtp.Outgoing{Done: func(err error) {
					mu.Lock()
					defer mu.Unlock()
					if err != nil {
						lost++
					} else {
						written++
					}
				}}
				o.Frame(big)
				if err := s.Send(o); err != nil {
					t.Fatal(err)
				}
			}
			receive(t, c)
			s.Close()
			mu.Lock()
			defer mu.Unlock()
			if written+lost != 6 || written == 0 || lost == 0 {
				t.Errorf("%d written, %d lost, expected 6 together and some of each", written, lost)
			}
		})
	}
}

// TestCloseWrite: the last message arrives although the sender ends the connection right after it.
func TestCloseWrite(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			a, b := tr.pair(t)
			s, c := open(t, a, b, zmtp.Config{})
			var o zmtp.Outgoing
			const size = 5 << 20 // more than the sockets of a pair hold
			o.Frame(make([]byte, size))
			if err := s.Send(&o); err != nil {
				t.Fatal(err)
			}
			s.CloseWrite()
			if got := receive(t, c); len(got[0]) != size {
				t.Fatal("cut short")
			}
			var m zmtp.Message
			if err := c.Receive(&m); err != io.EOF {
				t.Errorf("then %v, expected io.EOF", err)
			}
			// ErrQueueFull would blame the peer.
			if err := s.Send(&o); !errors.Is(err, zmtp.ErrClosed) {
				t.Errorf("Send after CloseWrite: %v, expected ErrClosed", err)
			}
		})
	}
}

// rawPeer is a client that shakes hands by hand and then sends anything.
func rawPeer(t testing.TB, cfg zmtp.Config) (*zmtp.Conn, net.Conn) {
	t.Helper()
	a, b := socketPair(t, "tcp", "127.0.0.1:0")
	t.Cleanup(func() { b.Close() })
	type result struct {
		c   *zmtp.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := zmtp.Server(a, cfg)
		done <- result{c, err}
	}()
	if _, err := b.Write(append(greeting(), ready("DEALER")...)); err != nil {
		t.Fatal(err)
	}
	skip := make([]byte, 64+2+6+4+6+4+20) // greeting, READY's header, name, Socket-Type ROUTER
	if _, err := io.ReadFull(b, skip[:64+2]); err != nil {
		t.Fatal(err)
	}
	if skip[11] != 1 {
		t.Errorf("greeted as ZMTP 3.%d, expected 3.1", skip[11])
	}
	if _, err := io.ReadFull(b, skip[:skip[65]]); err != nil {
		t.Fatal(err)
	}
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.c.Close() })
	return r.c, b
}

func greeting() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:], "NULL")
	return g
}

func ready(socketType string) []byte {
	return command("READY", property("Socket-Type", socketType), property("Identity", ""))
}

func property(k, v string) string {
	return string([]byte{byte(len(k))}) + k + string(binary.BigEndian.AppendUint32(nil, uint32(len(v)))) + v
}

func command(name string, parts ...string) []byte {
	body := string([]byte{byte(len(name))}) + name + strings.Join(parts, "")
	return append([]byte{4, byte(len(body))}, body...)
}

func long(flags byte, size uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{flags | 2}, size)
}

// TestHostileFrames: every broken stream ends its connection with a reason, and its claims take no
// memory.
func TestHostileFrames(t *testing.T) {
	tests := []struct {
		name  string
		bytes []byte
		want  error
		text  string
	}{
		{"2^63-1", long(0, 1<<63-1), zmtp.ErrTooLarge, "limit 1048576"},
		{"2^63", long(0, 1<<63), zmtp.ErrTooLarge, "9223372036854775808 bytes"},
		{"2^64-1", long(0, 1<<64-1), zmtp.ErrTooLarge, ""},
		{"2^62", long(0, 1<<62), zmtp.ErrTooLarge, ""},
		{"2^47", long(0, 1<<47), zmtp.ErrTooLarge, ""},
		{"2^40", long(1, 1<<40), zmtp.ErrTooLarge, ""},
		{"8 GiB", long(0, 8<<30), zmtp.ErrTooLarge, ""},
		{"limit+1", long(0, 1<<20+1), zmtp.ErrTooLarge, ""},
		{"sum over the limit", append([]byte{1, 1, 'x'}, long(0, 1<<20)...), zmtp.ErrTooLarge, "after 1"},
		{"sum that overflows", append([]byte{1, 1, 'x'}, long(0, 1<<64-1)...), zmtp.ErrTooLarge, "after 1"},
		{"endless MORE", bytes.Repeat([]byte{1, 0}, 100_000), zmtp.ErrTooLarge, "more than 100 frames"},
		{"reserved bits", []byte{8, 0}, zmtp.ErrProtocol, "reserved"},
		{"command with MORE", []byte{5, 1, 0}, zmtp.ErrProtocol, "MORE"},
		{"command inside a message", append([]byte{1, 0}, command("PING", "\x00\x00")...), zmtp.ErrProtocol, "inside"},
		{"empty command", []byte{4, 0}, zmtp.ErrProtocol, "without a name"},
		{"command name past the end", []byte{4, 2, 9, 'x'}, zmtp.ErrProtocol, "name of 9 bytes"},
		{"large command", long(4, 513), zmtp.ErrTooLarge, "command of 513"},
		{"short PING", command("PING", "\x00"), zmtp.ErrProtocol, "PING"},
		{"PING with a novel", command("PING", "\x00\x00", strings.Repeat("x", 17)), zmtp.ErrProtocol, "PING"},
		{"ERROR", command("ERROR", "\x03bad"), zmtp.ErrProtocol, `"bad"`},
		{"end in a header", []byte{2, 0, 0}, io.ErrUnexpectedEOF, ""},
		{"end in a body", []byte{0, 5, 'x'}, io.ErrUnexpectedEOF, ""},
		{"end in a large body", append(long(0, 1<<20), pattern(40_000)...), io.ErrUnexpectedEOF, ""},
		{"end between frames", []byte{1, 0}, io.ErrUnexpectedEOF, ""},
		{"end in a command", []byte{4, 9, 4}, io.ErrUnexpectedEOF, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pool := tensor.NewPool(1 << 20)
			s, raw := rawPeer(t, zmtp.Config{Pool: pool, Limits: zmtp.Limits{MessageBytes: 1 << 20, Frames: 100}})
			go func() {
				raw.Write(tt.bytes)
				raw.(*net.TCPConn).CloseWrite()
			}()
			var m zmtp.Message
			err := s.Receive(&m)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, expected %v with %q", err, tt.want, tt.text)
			}
			if again := s.Receive(&m); again != err {
				t.Errorf("second Receive: %v", again)
			}
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes not given back", n)
			}
		})
	}
}

// TestHostileHandshake: every hostile peer is refused with a reason; none causes a panic or takes
// memory.
func TestHostileHandshake(t *testing.T) {
	with := func(i int, b byte) []byte {
		g := greeting()
		g[i] = b
		return g
	}
	greeted := func(b []byte) []byte { return append(greeting(), b...) }
	tests := []struct {
		name  string
		bytes []byte
		text  string
	}{
		{"http", []byte("GET / HTTP/1.1\r\n\r\n"), "first byte 0x47"},
		{"signature", with(9, 0), "byte 9"},
		{"version 2", with(10, 2), "version 2"},
		{"PLAIN", append(append(greeting()[:12:12], "PLAIN\x00..............."[:20]...), make([]byte, 32)...), `"PLAIN"`},
		{"as-server", with(32, 2), "as-server"},
		{"a message", greeted([]byte{0, 1, 'x'}), "before READY"},
		{"2^62 READY", greeted(long(4, 1<<62)), "READY of 4611686018427387904 bytes"},
		{"2^63-1 READY", greeted(long(4, 1<<63-1)), "limit 4096"},
		{"4097 READY", greeted(long(4, 4097)), "limit 4096"},
		{"empty READY", greeted([]byte{4, 0}), "without a name"},
		{"no properties", greeted(command("READY")), `a "" socket`},
		{"STREAM", greeted(ready("STREAM")), `"STREAM" socket, expected DEALER`},
		{"CLIENT", greeted(ready("CLIENT")), `"CLIENT"`},
		{"REQ", greeted(ready("REQ")), `"REQ"`},
		{"PUB", greeted(ready("PUB")), `"PUB"`},
		{"property name past the end", greeted(command("READY", "\xffSocket-Type")), "cut short"},
		{"property value past the end", greeted(command("READY", "\x0bSocket-Type\xff\xff\xff\xff")), "4294967295 bytes"},
		{"identity of 256",
			greeted(append(long(4, 6+22+269), "\x05READY"+property("Socket-Type", "DEALER")+
				property("Identity", strings.Repeat("x", 256))...)), "identity of 256"},
		{"ERROR", greeted(command("ERROR", "\x02no")), `"no"`},
		{"HELLO", greeted(command("HELLO")), `"HELLO", expected READY`},
		{"end in the greeting", greeting()[:20], "EOF"},
		{"end in READY", greeted([]byte{4, 30, 5}), "EOF"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := socketPair(t, "tcp", "127.0.0.1:0")
			defer b.Close()
			go func() {
				b.Write(tt.bytes)
				b.(*net.TCPConn).CloseWrite()
			}()
			_, err := zmtp.Server(a, zmtp.Config{})
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, expected %q in it", err, tt.text)
			}
			if _, err := a.Write([]byte{0}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the socket was left open: %v", err)
			}
		})
	}
}

// TestReadyIgnoresCase: property names ignore case (ZMTP 3.1, "The READY Command"); the library's
// do not.
func TestReadyIgnoresCase(t *testing.T) {
	a, b := socketPair(t, "tcp", "127.0.0.1:0")
	defer b.Close()
	b.Write(append(greeting(), command("READY", property("SOCKET-type", "DEALER"), property("identity", "a\nb"))...))
	c, err := zmtp.Server(a, zmtp.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if p := c.Peer(); p.Identity != "a\nb" || p.Minor != 1 {
		t.Errorf("peer %+v", p)
	}
}

// TestHandshakeTimeout: a silent or trickling peer is closed after the handshake's time.
func TestHandshakeTimeout(t *testing.T) {
	for _, n := range []int{0, 1, 10, 64, 70} {
		a, b := socketPair(t, "tcp", "127.0.0.1:0")
		b.Write(append(greeting(), ready("DEALER")...)[:n])
		if _, err := zmtp.Server(a, zmtp.Config{HandshakeTimeout: 20 * time.Millisecond}); !errors.Is(err,
			os.ErrDeadlineExceeded) {
			t.Errorf("after %d bytes: %v, expected a deadline", n, err)
		}
		b.Close()
	}
}

// TestClaims: two hundred connections announce the largest message and send one byte of it.
func TestClaims(t *testing.T) {
	pool := tensor.NewPool(1 << 30)
	var wg sync.WaitGroup
	var ends []*zmtp.Conn
	for range 200 {
		a, b := containertest.Pipe()
		s, _ := open(t, a, b, zmtp.Config{Pool: pool})
		b.Write(append(long(0, 64<<20), 1))
		ends = append(ends, s)
		wg.Go(func() {
			var m zmtp.Message
			s.Receive(&m)
		})
	}
	budgettest.Until(t, "all claims are read", func() bool { return pool.InUse() >= 200*2048 })
	if n := pool.InUse(); n > 200*(16<<10+4<<10) {
		t.Errorf("200 claims hold %d bytes", n)
	}
	for _, s := range ends {
		s.Close()
	}
	wg.Wait()
	if n := pool.InUse(); n != 0 {
		t.Errorf("%d bytes not given back", n)
	}
}

// TestRefusedMemory: a message for which there is no memory is dropped, and the next one
// arrives whole.
func TestRefusedMemory(t *testing.T) {
	for _, size := range []int{10_000, 200_000, 3 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a, b := containertest.Pipe()
			pool := tensor.NewPool(8 << 10)
			s, c := open(t, a, b, zmtp.Config{Pool: pool})
			send(t, c, []byte("id"), make([]byte, 7000), make([]byte, size), make([]byte, 7000), []byte("x"))
			var m zmtp.Message
			if err := s.Receive(&m); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(m.Refused, tensor.ErrBudget) || len(m.Frames) != 5 || string(m.Frames[0].Data) != "id" ||
				m.Frames[2].Data != nil || string(m.Frames[4].Data) != "x" {
				t.Errorf("refused %v, %d frames", m.Refused, len(m.Frames))
			}
			m.Release()
			send(t, c, []byte("next"))
			if got := receive(t, s); string(got[0]) != "next" {
				t.Errorf("out of step: %q", got)
			}
			if n := pool.InUse(); n != 0 {
				t.Errorf("%d bytes not given back", n)
			}
		})
	}
}

// TestPings: PINGs that arrive together are answered at once, with the PONG to the last of them.
func TestPings(t *testing.T) {
	s, raw := rawPeer(t, zmtp.Config{})
	var wg sync.WaitGroup
	wg.Go(func() {
		var m zmtp.Message
		s.Receive(&m) // answers PINGs until the peer leaves
	})
	raw.Write(append(bytes.Repeat(command("PING", "\x00\x00", "first"), 200), command("PING", "\x00\x00", "last")...))
	want := command("PONG", "last")
	got := make([]byte, len(want))
	if _, err := io.ReadFull(raw, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("answered with %q, %v, expected %q", got, err, want)
	}
	if n := s.Writes(); n != 1 {
		t.Errorf("%d writes, expected 1", n)
	}
	raw.Close()
	wg.Wait()
}

// TestPing: a PING is answered with its context, even if it arrives while messages are written at
// full speed, and never inside one of them.
func TestPing(t *testing.T) {
	s, raw := rawPeer(t, zmtp.Config{})
	const messages, pings = 3000, 3000
	var wg sync.WaitGroup
	wg.Go(func() {
		var m zmtp.Message
		s.Receive(&m) // answers PINGs until the peer leaves
	})
	wg.Go(func() {
		for range pings {
			raw.Write(command("PING", "\x00\x00", "context"))
		}
	})
	wg.Go(func() {
		for range messages {
			sent := make(chan error, 1)
			o := zmtp.Outgoing{Done: func(err error) { sent <- err }}
			o.FrameString("head")
			o.Frame(make([]byte, 5000))
			if err := s.Send(&o); err != nil {
				t.Error(err)
				return
			}
			<-sent
		}
	})
	pong := command("PONG", "context")
	got, pongs := 0, 0
	head := make([]byte, 9)
	body := make([]byte, 5000)
	for got < messages {
		if _, err := io.ReadFull(raw, head[:2]); err != nil {
			t.Fatal(err)
		}
		switch {
		case head[0] == 4:
			if _, err := io.ReadFull(raw, body[:head[1]]); err != nil || !bytes.Equal(body[:head[1]], pong[2:]) {
				t.Fatalf("PONG %q, %v", body[:head[1]], err)
			}
			pongs++
		case head[0] == 1 && head[1] == 4:
			if _, err := io.ReadFull(raw, body[:4]); err != nil || string(body[:4]) != "head" {
				t.Fatalf("head %q, %v", body[:4], err)
			}
			if _, err := io.ReadFull(raw, head); err != nil || head[0] != 2 ||
				binary.BigEndian.Uint64(head[1:]) != 5000 {
				t.Fatalf("second frame's header %x, %v", head, err)
			}
			if _, err := io.ReadFull(raw, body); err != nil {
				t.Fatal(err)
			}
			got++
		default:
			t.Fatalf("frame header %x", head[:2])
		}
	}
	if pongs == 0 {
		t.Error("no PONG came")
	}
	raw.Close()
	wg.Wait()
}
