package container_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/container"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

var id = scheduler.ModelID{Name: "m", Version: "1"}

// A server is a listener in memory that the SDK dials by the name of its host.
type server struct {
	*containers.Listener
	sched *scheduler.Scheduler
	pool  *tensor.Pool
}

func newServer(t *testing.T, change ...func(*containers.Config)) *server {
	t.Helper()
	s := &server{pool: tensor.NewPool(1 << 30)}
	var err error
	if s.sched, err = scheduler.New(scheduler.Config{Pool: s.pool,
		Default: scheduler.ModelConfig{Strategy: "static"}}); err != nil {
		t.Fatal(err)
	}
	cfg := containers.Config{Scheduler: s.sched, Pool: s.pool}
	for _, f := range change {
		f(&cfg)
	}
	if s.Listener, err = containers.Listen(cfg); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	s.Close()
	s.sched.Close()
	if n := s.pool.InUse(); n != 0 {
		t.Errorf("the server has %d bytes not given back", n)
	}
}

func (s *server) live() int {
	m, ok := s.sched.Model(id)
	if !ok {
		return 0
	}
	return m.Replicas()
}

func (s *server) ask(q *scheduler.Request) ([]tensor.Tensor, error) {
	m, ok := s.sched.Model(id)
	if !ok {
		return nil, errors.New("no such model")
	}
	q.Model, q.Rows, q.Deadline = m, 1, time.Now().Add(time.Minute)
	if len(q.Inputs) > 0 {
		q.Rows = q.Inputs[0].Rows()
	}
	if err := s.sched.Infer(context.Background(), q); err != nil {
		return nil, err
	}
	return q.Outputs, nil
}

func row(v ...float32) tensor.Tensor {
	t, err := tensor.FromSlice(tensor.Shape{len(v) / 2, 2}, v)
	if err != nil {
		panic(err)
	}
	return t
}

// network dials servers by address; nil ones refuse.
type network struct {
	mu      sync.Mutex
	servers map[string]*server
	dials   atomic.Int32
}

func (n *network) dial(_ context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dials.Add(1)
	s := n.servers[addr]
	if s == nil {
		return nil, fmt.Errorf("%s: connection refused", addr)
	}
	mine, theirs := containertest.Pipe()
	if err := s.Add(theirs); err != nil {
		mine.Close()
		return nil, err
	}
	return mine, nil
}

func (n *network) set(addr string, s *server) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[addr] = s
}

func model(n *network, predict func(context.Context, *container.Batch) ([]tensor.Tensor, error)) container.Model {
	spec := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, 2}}}
	if predict == nil {
		predict = func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs, nil }
	}
	return container.Model{Name: "m", Version: "1", Inputs: spec, Outputs: spec, Predict: predict, Dial: n.dial,
		Log: slog.New(slog.DiscardHandler)}
}

// serving runs Serve in the background; the function that it returns ends it and returns its
// error.
func serving(m container.Model, resolve func(context.Context, string, string) ([]netip.Addr, error),
	addrs ...string) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- container.ServeWith(ctx, m, resolve, addrs...) }()
	return func() error {
		cancel()
		return <-done
	}
}

func bubble(t *testing.T, f func(t *testing.T, n *network, s *server)) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		n := &network{servers: map[string]*server{"10.0.0.1:7000": s}}
		f(t, n, s)
		s.stop(t)
		synctest.Wait()
	})
}

// TestPredict: a model's view of a batch, and the answers made of its results and errors.
func TestPredict(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		var predict func(b *container.Batch) ([]tensor.Tensor, error)
		stop := serving(model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			return predict(b)
		}), nil, "10.0.0.1:7000")
		synctest.Wait()
		other := []tensor.Tensor{row(1, 2, 3, 4)}
		for _, tt := range []struct {
			name    string
			predict func(b *container.Batch) ([]tensor.Tensor, error)
			want    string // of the error; empty: the rows come back doubled or as they are
		}{
			{"echo", func(b *container.Batch) ([]tensor.Tensor, error) {
				if b.Rows != 3 || b.Len() != 1 || len(b.Requests) != 1 || b.Requests[0] != 3 || b.Priority(0) != 4 ||
					string(b.Parameters(0)) != `{"k":1}` || string(b.Metadata(0)) != `{"id":2}` ||
					b.ID == 0 || time.Until(b.Deadline) > time.Minute || time.Until(b.Deadline) < 59*time.Second ||
					!b.Inputs[0].Shape.Equal(tensor.Shape{3, 2}) {
					t.Errorf("batch %+v", b)
				}
				return b.Inputs, nil
			}, ""},
			{"pooled output", func(b *container.Batch) ([]tensor.Tensor, error) {
				out, err := b.Output(0)
				copy(out.Data, b.Inputs[0].Data)
				return []tensor.Tensor{out}, err
			}, ""},
			{"error", func(b *container.Batch) ([]tensor.Tensor, error) { return nil, errors.New("no luck") }, "no luck"},
			{"panic", func(b *container.Batch) ([]tensor.Tensor, error) { panic("oops") }, "panic: oops"},
			{"index panic", func(b *container.Batch) ([]tensor.Tensor, error) { return b.Inputs[9:], nil }, "out of range"},
			{"row error", func(b *container.Batch) ([]tensor.Tensor, error) {
				for range 4 { // more often than there are rows
					b.Fail(1, errors.New("too dark"))
				}
				return b.Inputs, nil
			}, "too dark"},
			{"row outside", func(b *container.Batch) ([]tensor.Tensor, error) {
				b.Fail(3, errors.New("?"))
				return b.Inputs, nil
			}, "row 3 of a batch of 3"},
			{"no outputs", func(b *container.Batch) ([]tensor.Tensor, error) { return nil, nil }, "returned 0 outputs, 1 is declared"},
			{"wrong rows", func(b *container.Batch) ([]tensor.Tensor, error) { return other, nil }, "float32 [2, 2] for output"},
			{"lying shape", func(b *container.Batch) ([]tensor.Tensor, error) {
				return []tensor.Tensor{{DType: tensor.Float32, Shape: tensor.Shape{3, 2}, Data: make([]byte, 5)}}, nil
			}, "output \"x\""},
			{"too many sizes", func(b *container.Batch) ([]tensor.Tensor, error) {
				_, err := b.Output(0, 1)
				return nil, err
			}, "left over"},
		} {
			predict = tt.predict
			in := row(1, 2, 3, 4, 5, 6)
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{in}, Priority: 4,
				Parameters: []byte(`{"k":1}`), Rare: &scheduler.Rare{Metadata: []byte(`{"id":2}`)}})
			switch {
			case tt.want == "" && (err != nil || !bytes.Equal(out[0].Data, in.Data)):
				t.Errorf("%s: %v %v", tt.name, out, err)
			case tt.want != "" &&
				(!errors.Is(err, scheduler.ErrContainerFailed) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: %v, expected ErrContainerFailed with %q", tt.name, err, tt.want)
			}
			for _, o := range out {
				o.Release()
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestIdle: an idle container sends heartbeats, so its session lasts.
func TestIdle(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		stop := serving(model(n, nil), nil, "10.0.0.1:7000")
		time.Sleep(time.Hour)
		if d := n.dials.Load(); d != 1 || s.live() != 1 {
			t.Errorf("%d dials, %d replicas", d, s.live())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestGoodbye: a goodbye may arrive while a batch is computed. The batch is answered, and then
// the container hangs up.
func TestGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := containertest.Pipe()
		n := &network{}
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(time.Second)
			return b.Inputs, nil
		})
		m.Dial = func(context.Context, string, string) (net.Conn, error) { return mine, nil }
		done := make(chan error, 1)
		go func() { done <- container.Serve(context.Background(), m, "10.0.0.1:7000") }()
		c, err := zmtp.Server(theirs, zmtp.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		say := func(frames ...string) {
			var o zmtp.Outgoing
			for _, f := range frames {
				o.FrameString(f)
			}
			if err := c.Send(&o); err != nil {
				t.Error(err)
			}
		}
		say("welcome", `{"protocol":4,"heartbeat_ms":1000,"dead_after_ms":3000}`)
		say("batch", "12345678", `{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,2]}]}`, "abcdefgh")
		say("goodbye", `{"reason":"enough","reconnect":false}`)
		began := time.Now()
		var kinds []string
		for {
			var in zmtp.Message
			if err := c.Receive(&in); err != nil {
				if err != io.EOF {
					t.Error(err)
				}
				break
			}
			kinds = append(kinds, string(in.Frames[0].Data))
			in.Release()
		}
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == "heartbeat" })
		if took := time.Since(began); took != time.Second || !slices.Equal(kinds, []string{"hello", "result"}) {
			t.Errorf("%q in %v", kinds, took)
		}
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestReconnect: after a restart a server is served again, without a storm of dials meanwhile.
func TestReconnect(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		stop := serving(model(n, nil), nil, "10.0.0.1:7000")
		time.Sleep(time.Second)
		if s.live() != 1 {
			t.Fatal("not registered")
		}
		if again := s.Sessions()[0].Again; again == nil || *again {
			t.Error("a new container says that it was registered before")
		}
		n.set("10.0.0.1:7000", nil)
		s.Close()
		time.Sleep(time.Hour)
		if d := n.dials.Load(); d > 2000 {
			t.Errorf("%d dials in an hour", d)
		}
		again := newServer(t)
		n.set("10.0.0.1:7000", again)
		time.Sleep(6 * time.Second)
		if again.live() != 1 {
			t.Fatal("not back after 6 s")
		}
		if back := again.Sessions()[0].Again; back == nil || !*back {
			t.Error("it does not say that it was registered before")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		again.stop(t)
	})
}

// TestShutdownOfServer: a goodbye with reconnect is followed by a connection to the next server.
func TestShutdownOfServer(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		stop := serving(model(n, nil), nil, "10.0.0.1:7000")
		time.Sleep(time.Second)
		again := newServer(t)
		n.set("10.0.0.1:7000", again)
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(6 * time.Second)
		if again.live() != 1 {
			t.Error("not with the next server")
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		again.stop(t)
	})
}

// TestRetired: a goodbye without reconnect ends Serve.
func TestRetired(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		done := make(chan error, 1)
		go func() { done <- container.Serve(context.Background(), model(n, nil), "10.0.0.1:7000") }()
		time.Sleep(time.Second)
		s.Retire(id, "replaced")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestRefused: after a refusal the container registers again, but rarely.
func TestRefused(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		m := model(n, nil)
		m.Name = "a/b"
		var log bytes.Buffer
		m.Log = slog.New(slog.NewTextHandler(&log, nil))
		stop := serving(m, nil, "10.0.0.1:7000")
		time.Sleep(time.Hour)
		if d := n.dials.Load(); d < 50 || d > 200 {
			t.Errorf("%d dials in an hour", d)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "has a '/'") {
			t.Error("the reason is not in the log")
		}
	})
}

// TestDrain: after the end of ctx the current batch is finished, and no more are accepted.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		stop := serving(model(n, func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			time.Sleep(10 * time.Second)
			return b.Inputs, ctx.Err()
		}), nil, "10.0.0.1:7000")
		synctest.Wait()
		var wg sync.WaitGroup
		wg.Go(func() {
			out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}})
			if err != nil {
				t.Error(err)
				return
			}
			out[0].Release()
		})
		time.Sleep(time.Second)
		began := time.Now()
		if err := stop(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 9*time.Second {
			t.Errorf("the drain took %v", took)
		}
		wg.Wait()
	})
}

// TestDrainTimeout: a model that does not finish is abandoned.
func TestDrainTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		m := model(n, func(ctx context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		m.DrainTimeout = 3 * time.Second
		stop := serving(m, nil, "10.0.0.1:7000")
		synctest.Wait()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}}); err == nil {
				t.Error("answered")
			}
		})
		time.Sleep(time.Second)
		if err := stop(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Serve: %v", err)
		}
		wg.Wait()
	})
}

// TestSilentServer: a session with a server that hangs ends, and the next server is found.
func TestSilentServer(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		m := model(n, nil)
		hung := make(chan net.Conn, 100)
		m.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			mine, theirs := containertest.Pipe()
			if len(hung) > 0 {
				mine.Close()
				theirs.Close()
				return n.dial(ctx, network, addr)
			}
			hung <- theirs // never answered
			return mine, nil
		}
		stop := serving(m, nil, "10.0.0.1:7000")
		time.Sleep(30 * time.Second)
		if s.live() != 1 {
			t.Error("still waits for the server that hangs")
		}
		(<-hung).Close()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestNames: a host that resolves to several addresses stands for several servers, and changes are
// followed.
func TestNames(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		two, three := newServer(t), newServer(t)
		n.set("10.0.0.2:7000", two)
		n.set("10.0.0.3:7000", three)
		var mu sync.Mutex
		names := []string{"10.0.0.1", "10.0.0.2", "fd00::1"}
		var fail atomic.Bool
		resolve := func(_ context.Context, network, host string) ([]netip.Addr, error) {
			if network != "ip" || host != "shivad.example" {
				t.Errorf("looked up %s %s", network, host)
			}
			if fail.Load() {
				return nil, errors.New("no such host")
			}
			mu.Lock()
			defer mu.Unlock()
			var list []netip.Addr
			for _, n := range names {
				list = append(list, netip.MustParseAddr(n))
			}
			return list, nil
		}
		fail.Store(true)
		stop := serving(model(n, nil), resolve, "tcp://shivad.example:7000")
		time.Sleep(10 * time.Second)
		mu.Lock()
		was := names
		names = nil // the name exists, and has no address
		mu.Unlock()
		fail.Store(false)
		time.Sleep(10 * time.Second)
		mu.Lock()
		names = was
		mu.Unlock()
		time.Sleep(10 * time.Second)
		if s.live() != 1 || two.live() != 1 || three.live() != 0 {
			t.Errorf("replicas %d %d %d, expected 1 1 0", s.live(), two.live(), three.live())
		}
		mu.Lock()
		names = []string{"10.0.0.2", "10.0.0.3"}
		mu.Unlock()
		time.Sleep(30 * time.Second)
		if s.live() != 0 || two.live() != 1 || three.live() != 1 {
			t.Errorf("replicas %d %d %d, expected 0 1 1", s.live(), two.live(), three.live())
		}
		mu.Lock()
		names = nil // known addresses remain
		mu.Unlock()
		time.Sleep(10 * time.Minute)
		fail.Store(true)
		time.Sleep(10 * time.Minute)
		if two.live() != 1 || three.live() != 1 {
			t.Errorf("replicas %d %d, expected 1 1", two.live(), three.live())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		two.stop(t)
		three.stop(t)
	})
}

// TestArguments: an invalid model or address is an error at once.
func TestArguments(t *testing.T) {
	n := &network{}
	for _, tt := range []struct {
		change func(*container.Model)
		addr   string
		want   string
	}{
		{func(m *container.Model) { *m = container.Model{} }, "", "no name\nno version\nno Predict\nno outputs"},
		{func(m *container.Model) { m.Slots = 100 }, "", "Slots"},
		{func(m *container.Model) { m.MaxBatch, m.Concurrency = -1, 65 }, "", "MaxBatch is negative\nConcurrency is not in 0..64"},
		{func(m *container.Model) { m.Parameters = []byte("{") }, "", "container: model \"m\""},
		{func(m *container.Model) { m.WarmUp = func(context.Context) error { return errors.New("no GPU") } }, "", "warm-up: no GPU"},
		{func(*container.Model) {}, "udp://x:1", "tcp://, tls:// or ipc://"},
		{func(*container.Model) {}, "x", "tcp://host:port"},
		{func(*container.Model) {}, "ipc://", "ipc://path"},
	} {
		m := model(n, nil)
		tt.change(&m)
		addr := "10.0.0.1:7000"
		if tt.addr != "" {
			addr = tt.addr
		}
		if err := container.Serve(t.Context(), m, addr); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got %v, expected %q", err, tt.want)
		}
	}
}

// TestEnvironment: a supervised container finds its servers in the environment.
func TestEnvironment(t *testing.T) {
	t.Setenv(container.ServersEnv, "tcp://10.0.0.1:7000, 10.0.0.2:7000")
	bubble(t, func(t *testing.T, n *network, s *server) {
		two := newServer(t)
		n.set("10.0.0.2:7000", two)
		stop := serving(model(n, nil), nil)
		time.Sleep(time.Second)
		if s.live() != 1 || two.live() != 1 {
			t.Errorf("replicas %d %d", s.live(), two.live())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		two.stop(t)
	})
}

// TestConcurrency: as many Predicts run at once as the model allows, over all servers; a single
// server sends as many batches.
func TestConcurrency(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		var now, most atomic.Int32
		m := model(n, func(_ context.Context, b *container.Batch) ([]tensor.Tensor, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return b.Inputs, nil
		})
		m.Concurrency, m.MaxBatch = 2, 1
		stop := serving(m, nil, "10.0.0.1:7000")
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		began := time.Now()
		for range 12 {
			wg.Go(func() {
				out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}})
				if err != nil {
					t.Error(err)
					return
				}
				out[0].Release()
			})
		}
		wg.Wait()
		if most.Load() != 2 {
			t.Errorf("%d ran at once, expected 2", most.Load())
		}
		if took := time.Since(began); took > 6*time.Second+10*time.Millisecond {
			t.Errorf("12 batches of a second, two at once, took %v", took)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitsForPlace: a model whose version is served with other shapes waits on its connection, as
// long as it takes, and registers within a second or two after the other one has left; the reason
// is said once. One that is ended while it waits returns at once.
func TestWaitsForPlace(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, s *server) {
		other := containertest.Model{Name: "m", Version: "1",
			Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 2}}},
			Outputs: []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 2}}}}
		first, err := containertest.Join(s, other)
		if err != nil {
			t.Fatal(err)
		}
		log := new(text)
		m := model(n, nil)
		m.Log = slog.New(slog.NewTextHandler(log, nil))
		stop := serving(m, nil, "10.0.0.1:7000")
		leaver := serving(model(n, nil), nil, "10.0.0.1:7000")
		time.Sleep(10 * time.Minute)
		if err := leaver(); err != nil || n.dials.Load() != 2 {
			t.Errorf("%v; %d connections", err, n.dials.Load())
		}
		first.Close()
		time.Sleep(1200 * time.Millisecond)
		if out, err := s.ask(&scheduler.Request{Inputs: []tensor.Tensor{row(1, 2)}}); err != nil {
			t.Errorf("not served after the other one has left: %v", err)
		} else {
			out[0].Release()
		}
		if said := log.String(); strings.Count(said, "stop the 1 that serve this one") != 1 || strings.Contains(said, "cannot connect") {
			t.Errorf("the log: %s", said)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestToldWhy: what a server says when it ends a connection before the registration, in place of
// its handshake or after it, is the reason in the log, once.
func TestToldWhy(t *testing.T) {
	const reason = "more than containers.handshakes = 128 connections waited"
	for name, answer := range map[string]func(net.Conn){
		"in its place": func(c net.Conn) { _, _ = c.Write(zmtp.Refusal(errors.New(reason))) },
		"after it": func(c net.Conn) {
			if conn, err := zmtp.Server(c, zmtp.Config{}); err == nil {
				conn.Refuse(errors.New(reason))
				for m := new(zmtp.Message); conn.Receive(m) == nil; m.Release() {
				}
				conn.Close()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network, s *server) {
				log := new(text)
				m := model(n, nil)
				m.Log = slog.New(slog.NewTextHandler(log, nil))
				m.Dial = func(context.Context, string, string) (net.Conn, error) {
					mine, theirs := containertest.Pipe()
					go func() {
						answer(theirs)
						theirs.Close()
					}()
					return mine, nil
				}
				stop := serving(m, nil, "10.0.0.1:7000")
				time.Sleep(time.Minute)
				if said := log.String(); strings.Count(said, reason) != 1 || strings.Contains(said, "cannot connect") {
					t.Errorf("the log: %s", said)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
