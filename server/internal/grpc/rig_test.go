package grpc

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/schedtest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/intake"
	"github.com/shivad/shivad/server/internal/metrics"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/server/internal/regions"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/leaktest"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Under the race detector, slower levels take a second for a few megabytes, and tests send
// hundreds.
func init() {
	if err := gzip.SetLevel(1); err != nil {
		panic(err)
	}
}

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m, budgettest.RunWaiting)) }

// patience is how long a test waits for an expected event: only a failing test waits so long.
const patience = time.Minute

// rig is a door with a scheduler behind it, and models whose workers the test controls.
type rig struct {
	t          testing.TB
	net        *shivatest.Net // in memory; nil: the door is on a real socket
	sched      *scheduler.Scheduler
	gate       *gate.Gate
	door       *Door
	pool       *tensor.Pool
	metrics    *metrics.Metrics
	repository *repository
	log        *lockedBuffer
	client     pb.GRPCInferenceServiceClient
	closed     bool
}

// A change changes the configuration of a rig. budget is that of the pool.
type change func(cfg *Config, budget *int64)

func newRig(t testing.TB, changes ...change) *rig {
	t.Helper()
	return newRigOn(t, nil, changes...)
}

// inBubble runs a test with a rig on virtual time, where [synctest.Wait] returns when nothing is
// left to do.
func inBubble(t *testing.T, test func(t *testing.T, r *rig), changes ...change) {
	synctest.Test(t, func(t *testing.T) { test(t, newRigOn(t, new(shivatest.Net), changes...)) })
}

func newRigOn(t testing.TB, network *shivatest.Net, changes ...change) *rig {
	t.Helper()
	leaktest.Goroutines(t)
	r := &rig{t: t, net: network, metrics: metrics.New("test"), repository: &repository{state: predict.Unavailable}, log: new(lockedBuffer)}
	cfg := Config{
		Entrance: intake.Entrance{Addrs: []string{"127.0.0.1:0"}, Metrics: r.metrics.Door("grpc"), Log: slog.New(slog.NewTextHandler(r.log, nil))},
		Streams:  256, PingInterval: time.Minute, PingTimeout: patience, MinPing: time.Millisecond,
		Settings: Settings{
			Connections: intake.Settings{Total: 100}, InFlight: 8,
			OutboundBytes: 8 << 20, StallTimeout: patience, MessageTimeout: patience,
			Limits: gate.Limits{MessageBytes: 64 << 20, MetadataBytes: 64 << 10, Tensors: 16, Rank: 8},
		},
	}
	if network != nil {
		cfg.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return network.Listen(addr) }
	}
	budget := int64(1 << 30)
	for _, c := range changes {
		c(&cfg, &budget)
	}
	if r.pool = cfg.Memory.Pool; r.pool == nil {
		r.pool = tensor.NewPool(budget)
	}
	r.gate = gate.New(gate.Config{
		Pool:    r.pool,
		Options: func(string) gate.ModelOptions { return gate.ModelOptions{Deadline: patience} },
		Metrics: r.metrics,
		Ready:   func() (bool, string) { return true, "" },
	})
	hooks := r.metrics.Hooks()
	hooks.ModelChanged = r.gate.ModelChanged
	var err error
	if r.sched, err = scheduler.New(scheduler.Config{Pool: r.pool, Hooks: hooks}); err != nil {
		t.Fatal(err)
	}
	r.gate.Attach(r.sched)
	cfg.Memory.Pool = r.pool
	shared := regions.New(regions.Settings{}, nil)
	t.Cleanup(shared.Close)
	cfg.Predict = predict.New(predict.Config{Regions: shared, Gate: r.gate, Repository: r.repository, Version: "test",
		Reach: func() string { return config.RepositoryAll }, Changed: func(by, what, name, detail string) {},
		Settings: func(string) config.Model { return config.Model{Policy: config.Default().Defaults} }})
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.close()
		if n := r.pool.InUse(); n != 0 {
			t.Errorf("%d bytes of the pool are still out: %v", n, tensor.Outstanding(r.pool))
		}
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	r.client = pb.NewGRPCInferenceServiceClient(r.dial())
	return r
}

// close does what a server does at its end.
func (r *rig) close() {
	if r.closed {
		return
	}
	r.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r.gate.Drain()
	if err := r.sched.Drain(ctx); err != nil {
		r.t.Errorf("drain: %v", err)
	}
	r.sched.Close()
	r.door.Shutdown(ctx)
	if ctx.Err() != nil {
		r.t.Error("the door did not close in time")
	}
}

// dial connects a client that takes messages of any size and is closed before the door.
func (r *rig) dial(options ...grpc.DialOption) *grpc.ClientConn {
	r.t.Helper()
	conn, err := grpc.NewClient(r.door.Addrs()[0].String(), append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(r.connect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
	}, options...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// connect connects to the door.
func (r *rig) connect(ctx context.Context, addr string) (net.Conn, error) {
	if r.net != nil {
		return r.net.Dial(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// add makes a model with one replica.
func (r *rig) add(name string, spec scheduler.Spec, w scheduler.Worker) *scheduler.Replica {
	r.t.Helper()
	replica, err := r.sched.AddReplica(scheduler.ModelID{Name: name, Version: "1"}, spec, w, scheduler.ReplicaOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return replica
}

// echo adds a model of one input and output x of a dtype, [-1, -1], that answers with its input, in
// memory of the pool.
func (r *rig) echo(name string, d tensor.DType) {
	x := []tensor.Spec{{Name: "x", DType: d, Shape: tensor.Shape{-1, -1}}}
	r.add(name, scheduler.Spec{Inputs: x, Outputs: x, Platform: "test"}, scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		parts := make([]tensor.Tensor, len(b.Parts))
		for i := range b.Parts {
			parts[i] = b.Parts[i].Inputs[0]
		}
		out, err := tensor.Concat(parts, r.pool)
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	}))
}

// held adds a model of FP32 [-1, -1] that answers when the test tells it to.
func (r *rig) held(name string) *schedtest.Worker {
	x := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1, -1}}}
	w := new(schedtest.Worker)
	r.add(name, scheduler.Spec{Inputs: x, Outputs: x, Platform: "test"}, w)
	return w
}

// eachConn calls look for each connection of the door.
func (r *rig) eachConn(look func(*conn)) {
	r.door.mu.Lock()
	defer r.door.mu.Unlock()
	for c := range r.door.conns {
		look(c)
	}
}

// credits calls look for the account of each connection.
func (r *rig) credits(look func(k *cancels)) {
	r.eachConn(func(c *conn) {
		c.cancels.mu.Lock()
		defer c.cancels.mu.Unlock()
		look(&c.cancels)
	})
}

// connections returns the number of connections.
func (r *rig) connections() (n int) {
	r.eachConn(func(*conn) { n++ })
	return n
}

// inside returns how many requests have no answer yet.
func (r *rig) inside() int { return r.metrics.Door("grpc").InFlight() }

// floats returns a request to a model of FP32 [-1, -1].
func floats(model string, values ...float32) *pb.ModelInferRequest {
	t, err := tensor.FromSlice(tensor.Shape{1, len(values)}, values)
	if err != nil {
		panic(err)
	}
	return raw(model, "FP32", t.Shape, t.Data)
}

// raw returns a request to a model of one input x with raw contents.
func raw(model, datatype string, shape []int, data []byte) *pb.ModelInferRequest {
	return &pb.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{data},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: datatype, Shape: int64s(shape)}}}
}

// typed returns a request to a model of one input x with contents.
func typed(model, datatype string, shape []int64, c *pb.InferTensorContents) *pb.ModelInferRequest {
	return &pb.ModelInferRequest{ModelName: model,
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: datatype, Shape: shape, Contents: c}}}
}

// failed checks an error's code, its words, and the type in its details.
func failed(t *testing.T, err error, code codes.Code, reason string, words ...string) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code {
		t.Errorf("expected %v, got %v", code, err)
		return
	}
	for _, w := range words {
		if !strings.Contains(s.Message(), w) {
			t.Errorf("expected %q in %q", w, s.Message())
		}
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			if info.Reason != reason || info.Domain != "shivad" || info.Metadata["retryable"] == "" {
				t.Errorf("expected the reason %s, got %v", reason, info)
			}
			return
		}
	}
	if reason != "" {
		t.Errorf("%v has no details", err)
	}
}

// lockedBuffer collects a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// repository is a repository of one model, "managed".
type repository struct {
	mu    sync.Mutex
	state predict.State
}

func (r *repository) Models() []string { return []string{"managed", "panics"} }

func (r *repository) State(model string) predict.Condition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return predict.Condition{State: r.state, Reason: "as the test says"}
}

func (r *repository) Load(_ context.Context, model string) error {
	if model == "panics" {
		panic("in the repository")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = predict.Ready
	return nil
}

func (r *repository) Unload(string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = predict.Unavailable
	return nil
}

// A tap is a client's connection that stops sending after a number of bytes until it is opened, and
// that can be cut.
type tap struct {
	net.Conn
	mu   sync.Mutex
	left int
	open chan struct{}
	cut  chan struct{}
}

// tapped makes dialling return a connection that sends that many bytes.
func tapped(bytes int) (*tap, grpc.DialOption) {
	t := &tap{left: bytes, open: make(chan struct{}), cut: make(chan struct{})}
	return t, grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		if t.Conn != nil {
			return nil, errors.New("the tap has been used")
		}
		var err error
		t.Conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
		return t, err
	})
}

func (t *tap) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := min(len(b), t.left)
	if _, err := t.Conn.Write(b[:n]); err != nil {
		return 0, err
	}
	t.left -= n
	if n == len(b) {
		return n, nil
	}
	select {
	case <-t.open:
		t.left = 1 << 40
		m, err := t.Conn.Write(b[n:])
		return n + m, err
	case <-t.cut:
		return n, net.ErrClosed
	}
}

func (t *tap) Close() error {
	select {
	case <-t.cut:
	default:
		close(t.cut)
	}
	return t.Conn.Close()
}

func int64s(list []int) []int64 {
	out := make([]int64, len(list))
	for i, n := range list {
		out[i] = int64(n)
	}
	return out
}
