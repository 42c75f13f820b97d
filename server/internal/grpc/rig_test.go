package grpc

import (
	"context"
	"errors"
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
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/doortest"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/listen"
	"github.com/shivad/shivad/shiva/budgettest"
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

func TestMain(m *testing.M) { os.Exit(budgettest.RunClean(m)) }

// rig is a door and a client of it.
type rig struct {
	*doortest.Rig
	net    *shivatest.Net // in memory; nil: the door is on a real socket
	door   *Door
	client pb.GRPCInferenceServiceClient
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
	budgettest.Goroutines(t)
	cfg := Config{
		Streams: 256, PingInterval: time.Minute, PingTimeout: doortest.Patience, MinPing: time.Millisecond,
		Settings: Settings{
			Settings: listen.Settings{Connections: 100,
				Bounds: listen.Bounds{StallTimeout: doortest.Patience, MessageTimeout: doortest.Patience}},
			InFlight: 8, OutboundBytes: 8 << 20,
			Limits: gate.Limits{MessageBytes: 64 << 20, MetadataBytes: 64 << 10, Tensors: 16, Rank: 8},
		},
	}
	budget := int64(1 << 30)
	for _, c := range changes {
		c(&cfg, &budget)
	}
	if cfg.Memory.Pool == nil {
		cfg.Memory.Pool = tensor.NewPool(budget)
	}
	r := &rig{Rig: doortest.New(t, cfg.Memory.Pool), net: network}
	cfg.Entrance = r.Entrance("grpc")
	if network != nil {
		cfg.Open = func(addr string, _ unixsocket.Access) (net.Listener, error) { return network.Listen(addr) }
	}
	cfg.Predict = r.Predict(&doortest.Repository{Names: []string{"managed", "panics"},
		Loading: func(_ context.Context, model string) error {
			if model == "panics" {
				panic("in the repository")
			}
			return nil
		}})
	var err error
	if r.door, err = Listen(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Log.String())
		}
	})
	r.Serves(r.shutdown)
	r.client = pb.NewGRPCInferenceServiceClient(r.dial())
	return r
}

func (r *rig) shutdown(ctx context.Context) error {
	r.door.Shutdown(ctx)
	return ctx.Err()
}

// dial connects a client that takes messages of any size and is closed before the door.
func (r *rig) dial(options ...grpc.DialOption) *grpc.ClientConn {
	r.T.Helper()
	conn, err := grpc.NewClient(r.door.Addrs()[0].String(), append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(r.connect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.MaxCallSendMsgSize(1<<30)),
	}, options...)...)
	if err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() { conn.Close() })
	return conn
}

// connect connects to the door.
func (r *rig) connect(ctx context.Context, addr string) (net.Conn, error) {
	if r.net != nil {
		return r.net.Dial(ctx, "tcp", addr)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// squares is a specification of one input and output x of a dtype, [-1, -1].
func squares(d tensor.DType) scheduler.Spec {
	x := []tensor.Spec{{Name: "x", DType: d, Shape: tensor.Shape{-1, -1}}}
	return scheduler.Spec{Inputs: x, Outputs: x, Platform: "test"}
}

// echo adds a model that answers with its input.
func (r *rig) echo(name string, d tensor.DType) {
	r.Model(name, squares(d), scheduler.WorkerFunc(r.Echo))
}

// held adds a model of FP32 that answers when the test tells it to.
func (r *rig) held(name string) *schedtest.Worker { return r.Held(name, squares(tensor.Float32)) }

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
func (r *rig) inside() int { return r.Metrics.Door("grpc").InFlight() }

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
