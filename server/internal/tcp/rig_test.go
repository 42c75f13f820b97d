package tcp

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/certtest"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

func TestMain(m *testing.M) { os.Exit(budgettest.RunWaiting(m)) }

// rig is a door with models whose workers the test holds. Its clients are on a network in memory,
// or on sockets.
type rig struct {
	*doortest.Rig
	door *Door
	net  *shivatest.Net // nil: clients are on sockets
	tls  *tls.Config    // of clients; nil: no TLS
}

// newRig makes a rig in memory. In a synctest bubble its clocks are virtual.
func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	n := new(shivatest.Net)
	r := newRigAt(t, "memory", func(c *Config) {
		if change != nil {
			change(c)
		}
		c.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return n.Listen(addr) }
	})
	r.net = n
	return r
}

// newSocketRig makes a rig on TCP sockets, for behaviour of the kernel.
func newSocketRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	return newRigAt(t, "127.0.0.1:0", change)
}

// newUnixRig makes a rig on the other transport for sockets.
func newUnixRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	return newRigAt(t, "unix:"+t.TempDir()+"/s", change)
}

// newTLSRig makes a rig whose clients speak TLS, and show a certificate.
func newTLSRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	authority := certtest.New(t, "authority")
	server := authority.Server(nil)
	paths := certtest.Write(t, t.TempDir(), "cert.pem", server.Cert, "key.pem", server.Key, "ca.pem", authority.PEM())
	config, faults := listen.TLSFiles{Cert: paths[0], Key: paths[1], ClientCA: paths[2],
		ClientAuth: listen.AuthOptional}.Load(time.Now(), nil)
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	r := newRigAt(t, "tls://127.0.0.1:0", func(c *Config) {
		if change != nil {
			change(c)
		}
		c.TLS, c.Handshakes, c.HandshakeTimeout = config, 100, time.Minute
	})
	// The cheapest key exchange: it is most of the work of a handshake.
	r.tls = &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}, RootCAs: authority.Pool(),
		ServerName: "localhost", Certificates: []tls.Certificate{authority.Client("camera", nil).Pair(t)}}
	return r
}

// onAll runs a test on all transports: in memory on virtual time, and on each kind of socket.
func onAll(t *testing.T, test func(t *testing.T, newRig func(testing.TB, func(*Config)) *rig)) {
	t.Parallel()
	t.Run("memory", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { test(t, newRig) }) })
	onSockets(t, test)
}

// onTransports runs a test of kernel behaviour on each kind of socket, in parallel, since such
// tests mostly wait.
func onTransports(t *testing.T, test func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig)) {
	t.Parallel()
	onSockets(t, test)
}

func onSockets(t *testing.T, test func(t *testing.T, newSocketRig func(testing.TB, func(*Config)) *rig)) {
	for name, newSocketRig := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newSocketRig)
		})
	}
}

// transports are the kinds of rigs on sockets.
var transports = map[string]func(testing.TB, func(*Config)) *rig{"tcp": newSocketRig, "unix": newUnixRig, "tls": newTLSRig}

func newRigAt(t testing.TB, addr string, change func(*Config)) *rig {
	t.Helper()
	r := &rig{Rig: doortest.New(t, tensor.NewPool(1<<30))}
	cfg := Config{
		Entrance: r.Entrance("tcp"),
		Gate:     r.Gate, Regions: r.Regions, Pool: r.Pool,
		Describe: func(who *access.Identity, path string, onlyReady bool) ([]byte, bool, error) {
			return r.Predict(nil).As(who).Describe(path, onlyReady)
		},
		Loops: 1,
		Settings: Settings{
			Settings: listen.Settings{Connections: 1000,
				Bounds: listen.Bounds{MessageTimeout: 10 * time.Second, StallTimeout: 10 * time.Second}},
			InFlight: 256, OutboundBytes: 8 << 20,
		},
	}
	if change != nil {
		change(&cfg)
	}
	cfg.Addrs = []string{addr}
	var err error
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	r.Delivering = r.door.Gather
	r.Serves(r.shutdown)
	return r
}

func (r *rig) shutdown(ctx context.Context) error {
	err := r.door.Shutdown(ctx)
	if n := r.open(); n != 0 {
		r.T.Errorf("%d connections are left", n)
	}
	return err
}

// close stops the rig, and fails if anything is left behind.
func (r *rig) close(ctx context.Context) error {
	err := r.Stop(ctx)
	r.Returned()
	return err
}

// open returns the number of open connections.
func (r *rig) open() int { return r.door.listener.Open() }

func floats(name string) scheduler.Spec {
	t := []tensor.Spec{{Name: name, DType: tensor.Float32, Shape: tensor.Shape{-1, 4}}}
	return scheduler.Spec{Inputs: t, Outputs: t, Platform: "test"}
}

// model adds a model whose worker is a function.
func (r *rig) model(name string, spec scheduler.Spec, w scheduler.WorkerFunc) *scheduler.Replica {
	r.T.Helper()
	return r.Model(name, spec, w)
}

// wire is a plain client: it writes bytes and reads messages.
type wire struct {
	t testing.TB
	client
	d    *shiva.Decoder
	buf  []byte
	rest []byte // of buf, not decoded yet
}

// A client has the methods that *net.TCPConn, *net.UnixConn and *shivatest.Link have in common.
type client interface {
	io.ReadWriteCloser
	CloseWrite() error
	SetReadDeadline(time.Time) error
}

func (r *rig) dial() *wire {
	r.T.Helper()
	conn, err := r.connect()
	if err != nil {
		r.T.Fatal(err)
	}
	c := conn.(client)
	r.T.Cleanup(func() { c.Close() })
	return &wire{t: r.T, client: c, d: shiva.NewDecoder(shiva.DecoderConfig{})}
}

// connect makes a connection.
func (r *rig) connect() (net.Conn, error) {
	addr := r.door.Addrs()[0].String()
	if r.net != nil {
		return r.net.DialFrom(r.T.Context(), "127.0.0.1:5000", addr)
	}
	if hostport, encrypted := listen.CutTLS(addr); encrypted {
		c, err := tls.Dial("tcp", hostport, r.tls)
		if err != nil {
			return nil, err
		}
		return encryptedClient{c, c.NetConn().(*net.TCPConn)}, nil
	}
	network, addr := unixsocket.Target(addr)
	return net.Dial(network, addr)
}

// An encryptedClient also gives tests access to the client's socket.
type encryptedClient struct {
	*tls.Conn
	socket *net.TCPConn
}

func (c encryptedClient) SetReadBuffer(n int) error { return c.socket.SetReadBuffer(n) }

// loops returns all loops of the door.
func (r *rig) loops() (list []*loop) {
	for _, c := range r.door.carriers {
		switch c := c.(type) {
		case *engine:
			c.mu.Lock()
			list = slices.AppendSeq(list, maps.Values(c.loops))
			c.mu.Unlock()
		case *sockets:
			list = append(list, c.loops...)
		}
	}
	return list
}

func (w *wire) send(m *shiva.Message) {
	w.t.Helper()
	b, err := shiva.AppendMessage(nil, m)
	if err != nil {
		w.t.Fatal(err)
	}
	w.bytes(b)
}

func (w *wire) bytes(b []byte) {
	w.t.Helper()
	if _, err := w.Write(b); err != nil {
		w.t.Fatal(err)
	}
}

// next reads one answer; nil at a clean end of the stream.
func (w *wire) next() *shiva.Message {
	w.t.Helper()
	if w.buf == nil {
		w.buf = make([]byte, 64<<10)
	}
	for {
		for len(w.rest) > 0 {
			n, m, err := w.d.Push(w.rest)
			w.rest = w.rest[n:]
			if err != nil {
				w.t.Fatal(err)
			}
			if m != nil {
				return m
			}
		}
		_ = w.SetReadDeadline(time.Now().Add(doortest.Patience))
		n, err := w.Read(w.buf)
		if err == io.EOF && n == 0 {
			return nil
		}
		if err != nil {
			w.t.Fatalf("reading an answer: %v", err)
		}
		w.rest = w.buf[:n]
	}
}

type errorMetadata struct {
	Type, Message string
	Code          int
	Retryable     bool
	ID            any
}

// fault reads one answer, which must be an error of type want.
func (w *wire) fault(want string) errorMetadata {
	w.t.Helper()
	m := w.next()
	var e errorMetadata
	if m == nil || m.Namespace != "!error" {
		w.t.Fatalf("expected an error of type %s, got %v", want, m)
	}
	if err := json.Unmarshal(m.Metadata, &e); err != nil {
		w.t.Fatal(err)
	}
	if e.Type != want {
		w.t.Fatalf("expected an error of type %s, got %s: %s", want, e.Type, e.Message)
	}
	return e
}

func message(ns, metadata string, values ...float32) *shiva.Message {
	return &shiva.Message{Namespace: ns, Metadata: []byte(metadata), Tensors: []tensor.Tensor{row(values...)}}
}

func row(values ...float32) tensor.Tensor {
	t, err := tensor.FromSlice(tensor.Shape{len(values)}, values)
	if err != nil {
		panic(err)
	}
	return t
}

func values(t *testing.T, m *shiva.Message) []float32 {
	t.Helper()
	if m == nil || m.Namespace == "!error" {
		t.Fatalf("expected a good answer, got %v", describeMessage(m))
	}
	v, err := tensor.Values[float32](m.Tensors[0])
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func describeMessage(m *shiva.Message) string {
	if m == nil {
		return "end of stream"
	}
	return fmt.Sprintf("%s %s, %d tensors", m.Namespace, m.Metadata, len(m.Tensors))
}
