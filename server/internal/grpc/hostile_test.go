package grpc

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestLimits(t *testing.T) {
	r := newRig(t, func(c *Config, budget *int64) {
		c.Limits = gate.Limits{MessageBytes: 1 << 20, MetadataBytes: 1000, Tensors: 2, Rank: 3}
		*budget = 4 << 20
	})
	r.echo("m", tensor.Float32)
	ask := func(q *pb.ModelInferRequest) error {
		_, err := r.client.ModelInfer(t.Context(), q)
		return err
	}
	// Tensors up to the limit are accepted, whatever else is in the message.
	if err := ask(raw("m", "FP32", []int{1, 1 << 18}, make([]byte, 1<<20))); err != nil {
		t.Error(err)
	}
	large := raw("m", "FP32", []int{1, 1 << 19}, make([]byte, 1<<21))
	failed(t, ask(large), codes.ResourceExhausted, "TooLarge", fmt.Sprint(proto.Size(large)), "limits.message_bytes is 1048576")
	long := floats("m", 1)
	long.Id = string(bytes.Repeat([]byte("x"), 1001))
	failed(t, ask(long), codes.ResourceExhausted, "TooLarge", "limits.metadata_bytes is 1000")
	many := floats("m", 1)
	many.Parameters = map[string]*pb.InferParameter{}
	for i := range 100 {
		many.Parameters[fmt.Sprint(i)] = nil
	}
	failed(t, ask(many), codes.ResourceExhausted, "TooLarge", "limits.metadata_bytes is 1000")
	deep := floats("m", 1)
	deep.Inputs[0].Shape = []int64{1, 1, 1, 1}
	failed(t, ask(deep), codes.ResourceExhausted, "TooLarge", `"x"`, "limits.rank allows, 3")
	wide := floats("m", 1)
	wide.RawInputContents = make([][]byte, 3)
	failed(t, ask(wide), codes.ResourceExhausted, "TooLarge", "raw_input_contents", "limits.tensors allows, 2")
	wide = floats("m", 1)
	wide.Outputs = make([]*pb.ModelInferRequest_InferRequestedOutputTensor, 3)
	failed(t, ask(wide), codes.ResourceExhausted, "TooLarge", "outputs", "limits.tensors allows, 2")
	_, err := r.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: long.Id})
	failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.metadata_bytes is 1000")
	_, err = r.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: long.Id[:900]})
	failed(t, err, codes.NotFound, "NotFound")
}

// When the budget is used up, a request that needs memory is refused, also within a stream, and
// other requests are served.
func TestBudget(t *testing.T) {
	r := newRig(t, func(_ *Config, budget *int64) { *budget = 4 << 20 })
	w := r.held("held")
	r.echo("m", tensor.Float32)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	for range 3 {
		waiting.Go(func() { _, _ = r.client.ModelInfer(ctx, floats("held", make([]float32, 1<<18)...)) })
	}
	budgettest.Until(r.T, "the budget to be used", func() bool { return r.inside() == 3 })
	_, err := r.client.ModelInfer(t.Context(), floats("m", make([]float32, 1<<19)...))
	failed(t, err, codes.ResourceExhausted, "Overloaded", "limits.payload_bytes", "4194304")
	s := r.stream(t.Context())
	for _, n := range []int{1, 1 << 19, 2} {
		if err := s.Send(floats("m", make([]float32, n)...)); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []string{"", "Overloaded: ", ""} {
		a, err := s.Recv()
		if err != nil || want == "" && a.ErrorMessage != "" ||
			want != "" && !bytes.HasPrefix([]byte(a.ErrorMessage), []byte(want)) {
			t.Errorf("answer %d: %v %v", i, a, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Error(err)
	}
	_, _ = s.Recv()
	cancel()
	waiting.Wait()
	for w.Answer() == nil {
	}
}

// A client that announces much and sends little gets little memory, and an error if it is slow.
func TestSlowMessage(t *testing.T) {
	t.Parallel() // it waits
	r := newRig(t, func(c *Config, _ *int64) { c.MessageTimeout = 100 * time.Millisecond })
	r.echo("m", tensor.Float32)
	const sent = 3 << 20
	tap, option := tapped(sent)
	slow := pb.NewGRPCInferenceServiceClient(r.dial(option))
	done := make(chan error, 1)
	go func() {
		_, err := slow.ModelInfer(t.Context(), floats("m", make([]float32, 5<<20)...))
		done <- err
	}()
	var most int64
	budgettest.Until(t, "memory to be taken for the message", func() bool {
		select {
		case err := <-done:
			t.Fatalf("the client was answered early: %v", err)
		default:
		}
		most = max(most, r.Pool.InUse())
		return most > 0
	})
	// Other clients are served meanwhile.
	for range 100 {
		if _, err := r.client.ModelInfer(t.Context(), floats("m", 1)); err != nil {
			t.Fatal(err)
		}
		most = max(most, r.Pool.InUse())
	}
	if most > 8*sent+(64<<10) {
		t.Errorf("%d bytes for a message of which %d came", most, sent)
	}
	tap.Close()
	<-done
	budgettest.Until(r.T, "the memory", func() bool { return r.Pool.InUse() == 0 })

	// 30,000 bytes get a second more. Half of them arrive: one frame of HTTP/2.
	tap, option = tapped(20_000)
	slow = pb.NewGRPCInferenceServiceClient(r.dial(option))
	_, err := slow.ModelInfer(t.Context(), floats("m", make([]float32, 7500)...))
	failed(t, err, codes.DeadlineExceeded, "DeadlineExceeded", "grpc.message_timeout")
	budgettest.Until(r.T, "the call to be counted", func() bool { return r.inside() == 0 })
	close(tap.open)
}

// A client that hangs up in the middle of a message leaves nothing behind.
func TestHangUpWhileSending(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	for _, bytes := range []int{100, 20_000, 1 << 20} {
		before := metric(r, `shivad_received_bytes_total{door="grpc"} `)
		tap, option := tapped(bytes)
		c := pb.NewGRPCInferenceServiceClient(r.dial(option))
		done := make(chan error, 1)
		go func() {
			_, err := c.ModelInfer(t.Context(), floats("m", make([]float32, 1<<20)...))
			done <- err
		}()
		budgettest.Until(r.T, "what comes", func() bool {
			return metric(r, `shivad_received_bytes_total{door="grpc"} `)-before >= bytes
		})
		tap.Close()
		if err := <-done; err == nil {
			t.Error("answered")
		}
		budgettest.Until(r.T, "the memory", func() bool { return r.Pool.InUse() == 0 && r.inside() == 0 })
	}
}

// The memory of answers that wait for their client's window is returned when the client leaves,
// whether it cancels or disconnects.
func TestHangUpWhileReceiving(t *testing.T) {
	for _, how := range []string{"cancel", "cut"} {
		t.Run(how, func(t *testing.T) {
			r := newRig(t)
			r.echo("m", tensor.Float32)
			var conn net.Conn
			client := pb.NewGRPCInferenceServiceClient(r.dial(
				grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10),
				grpc.WithContextDialer(func(ctx context.Context, addr string) (c net.Conn, err error) {
					conn, err = new(net.Dialer).DialContext(ctx, "tcp", addr)
					return conn, err
				})))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s, err := client.ModelStreamInfer(ctx)
			if err != nil {
				t.Fatal(err)
			}
			// Answers that exceed the window and are not read.
			for range 4 {
				if err := s.Send(floats("m", make([]float32, 1<<18)...)); err != nil {
					t.Fatal(err)
				}
			}
			budgettest.Until(r.T, "answers to wait", func() bool { return r.Pool.InUse() >= 2<<20 && r.inside() == 0 })
			if how == "cancel" {
				cancel()
			} else {
				conn.Close()
			}
			budgettest.Until(r.T, "the memory", func() bool { return r.Pool.InUse() == 0 })
		})
	}
}

func TestConnectionLimit(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.Connections = 1 })
	if _, err := r.client.ServerLive(t.Context(), &pb.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := pb.NewGRPCInferenceServiceClient(r.dial()).ServerLive(t.Context(), &pb.ServerLiveRequest{})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if _, err := r.client.ServerLive(t.Context(), &pb.ServerLiveRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := r.Metrics.Door("grpc").Connections(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if got := metric(r, `shivad_connections_closed_total{door="grpc",reason="connection_limit"} `); got < 1 {
		t.Errorf("%d were turned away", got)
	}
}

// One address cannot use up the door's connections.
func TestConnectionsOfOneAddress(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.ConnectionsPerAddress, c.Loopback = 1, true })
	live := func(client pb.GRPCInferenceServiceClient) error {
		_, err := client.ServerLive(t.Context(), &pb.ServerLiveRequest{})
		return err
	}
	if err := live(r.client); err != nil {
		t.Fatal(err)
	}
	if err := live(pb.NewGRPCInferenceServiceClient(r.dial())); status.Code(err) != codes.Unavailable {
		t.Errorf("%v", err)
	}
	if got := metric(r, `shivad_connections_closed_total{door="grpc",reason="address_limit"} `); got < 1 {
		t.Errorf("%d were turned away", got)
	}
	elsewhere := r.dial(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, "tcp", addr)
	}))
	if err := live(pb.NewGRPCInferenceServiceClient(elsewhere)); err != nil {
		t.Error(err)
	}
	elsewhere.Close()
	budgettest.Until(r.T, "its place", func() bool { return r.Metrics.Door("grpc").Connections() == 1 })
}

// An invalid message is the client's error, and affects only this call.
func TestMalformed(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	conn := r.dial(grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	for _, method := range []string{"ModelInfer", "ModelMetadata", "ServerLive"} {
		var answer []byte
		err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/"+method, []byte{0x0a, 5, 'a'}, &answer)
		failed(t, err, codes.InvalidArgument, "Protocol")
	}
	var answer []byte
	err := conn.Invoke(t.Context(), "/inference.GRPCInferenceService/ModelInfer", []byte{0x0a, 1, 0xff}, &answer)
	failed(t, err, codes.InvalidArgument, "Protocol", "UTF-8")

	// No message at all.
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/inference.GRPCInferenceService/ModelInfer")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	failed(t, s.RecvMsg(&answer), codes.InvalidArgument, "Protocol")

	// Headers far beyond the limit.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-much", string(bytes.Repeat([]byte("x"), 100<<10)))
	if _, err := r.client.ServerLive(ctx, &pb.ServerLiveRequest{}); err == nil {
		t.Error("taken")
	}
	if _, err := r.client.ServerLive(t.Context(), &pb.ServerLiveRequest{}); err != nil {
		t.Error(err)
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = append([]byte{}, b...)
	return nil
}

func (rawCodec) Name() string { return "proto" }
