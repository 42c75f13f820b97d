package grpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func (r *rig) stream(ctx context.Context, options ...grpc.CallOption) pb.GRPCInferenceService_ModelStreamInferClient {
	r.T.Helper()
	s, err := r.client.ModelStreamInfer(ctx, options...)
	if err != nil {
		r.T.Fatal(err)
	}
	return s
}

// Answers arrive in the order of the requests, bad requests are answered in their place, and the
// stream goes on.
func TestStream(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	for _, compressor := range []string{"", gzip.Name} {
		s := r.stream(t.Context(), grpc.UseCompressor(compressor))
		n := max(40, budgettest.Rounds(200))
		go func() {
			for i := range n {
				q := floats("m", float32(i))
				q.Id = fmt.Sprint(i)
				switch i % 10 {
				case 3:
					q.ModelName = "nope"
				case 5:
					q.Inputs[0].Shape = []int64{7}
				case 7: // found while the request is being read
					for range 20 {
						q.RawInputContents = append(q.RawInputContents, make([]byte, 100_000))
					}
				}
				if err := s.Send(q); err != nil {
					t.Error(err)
					return
				}
			}
			if err := s.CloseSend(); err != nil {
				t.Error(err)
			}
		}()
		for i := range n {
			a, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if a.InferResponse.GetId() != fmt.Sprint(i) {
				t.Fatalf("answer %d has the id %q", i, a.InferResponse.GetId())
			}
			want := map[int]string{3: "NotFound: ", 5: "InvalidInput: ", 7: "TooLarge: "}[i%10]
			switch {
			case want != "" && !strings.HasPrefix(a.ErrorMessage, want):
				t.Errorf("answer %d: expected %q, got %q", i, want, a.ErrorMessage)
			case want == "" &&
				(a.ErrorMessage != "" || string(a.InferResponse.RawOutputContents[0]) != string(elements(float32(i))) ||
					!a.InferResponse.Parameters["triton_final_response"].GetBoolParam()):
				t.Errorf("answer %d: %v", i, a)
			}
		}
		if _, err := s.Recv(); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}

// A stream executes a limited number of requests at a time, and reads no more.
func TestStreamIsBounded(t *testing.T) {
	r := newRig(t)
	w := r.held("m")
	s := r.stream(t.Context())
	const n = 100
	go func() {
		for i := range n {
			if err := s.Send(floats("m", make([]float32, 100+i)...)); err != nil {
				t.Error(err)
				return
			}
		}
		_ = s.CloseSend()
	}()
	var most int
	got := make(chan int)
	go func() {
		for i := range n {
			a, err := s.Recv()
			if err != nil || a.ErrorMessage != "" || len(a.InferResponse.RawOutputContents[0]) != 4*(100+i) {
				t.Errorf("answer %d: %v %v", i, a, err)
				break
			}
		}
		close(got)
	}()
	budgettest.Until(r.T, "the stream to fill its places", func() bool { return r.inside() == 8 })
	budgettest.Until(t, "the answers", func() bool {
		most = max(most, r.inside())
		_ = w.Answer() // batch by batch
		select {
		case <-got:
			return true
		default:
			return false
		}
	})
	if most != 8 {
		t.Errorf("%d at a time, expected 8", most)
	}
}

// The requests of a stream leave the queue when its client gives up, or its deadline passes.
func TestStreamEndsEarly(t *testing.T) {
	r := newRig(t)
	w := r.held("m")
	for _, end := range []codes.Code{codes.Canceled, codes.DeadlineExceeded} {
		ctx, cancel := context.WithCancel(t.Context())
		if end == codes.DeadlineExceeded {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		s := r.stream(ctx)
		for range 5 {
			if err := s.Send(floats("m", 1)); err != nil {
				t.Fatal(err)
			}
		}
		if end == codes.Canceled {
			budgettest.Until(r.T, "the requests", func() bool { return r.inside() == 5 })
			cancel()
		}
		// The server may still have answered some requests with DeadlineExceeded.
		a, err := s.Recv()
		for err == nil && strings.HasPrefix(a.ErrorMessage, "DeadlineExceeded: ") {
			a, err = s.Recv()
		}
		if status.Code(err) != end {
			t.Errorf("expected %v, got %v %v", end, a, err)
		}
		budgettest.Until(r.T, "the requests to leave", func() bool { return r.inside() == 0 })
		cancel()
		for w.Answer() == nil {
		}
	}
}

// A stream that ends while no request is open has failed none: it does not count as a request.
func TestIdleStreamIsNoRequest(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := r.stream(ctx)
	if err := s.Send(floats("m", 1)); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Recv(); err != nil || a.ErrorMessage != "" {
		t.Fatalf("%v %v", a, err)
	}
	cancel()
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if n := metric(r, `shivad_requests_total{door="grpc",model="m",outcome="ok",version="1"} `); n != 1 {
		t.Errorf("%d requests were answered", n)
	}
	if n, ok := findMetric(r, `shivad_requests_total{door="grpc",model="",outcome="canceled",version=""} `); ok &&
		n > 0 {
		t.Errorf("%d requests were canceled", n)
	}
}

// A message above the limit ends the stream, since its rest is not worth receiving; the answers
// before it are sent.
func TestStreamTooLarge(t *testing.T) {
	r := newRig(t, func(c *Config, _ *int64) { c.Limits.MessageBytes = 1 << 20 })
	r.echo("m", tensor.Float32)
	s := r.stream(t.Context())
	if err := s.Send(floats("m", 1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Send(floats("m", make([]float32, 1<<20)...)); err != nil {
		t.Fatal(err)
	}
	if a, err := s.Recv(); err != nil || a.ErrorMessage != "" {
		t.Errorf("%v %v", a, err)
	}
	_, err := s.Recv()
	failed(t, err, codes.ResourceExhausted, "TooLarge", "limits.message_bytes is 1048576")
}

// Under load, a closing door answers each request: with a result, or with Draining.
func TestDrainUnderLoad(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	var clients sync.WaitGroup
	began := make(chan struct{}, 100)
	for i := range 4 {
		client := pb.NewGRPCInferenceServiceClient(r.dial())
		clients.Go(func() { // calls
			for n := 0; ; n++ {
				a, err := client.ModelInfer(t.Context(), floats("m", make([]float32, 2000)...))
				switch {
				case err == nil && len(a.RawOutputContents[0]) == 8000:
				case status.Code(err) == codes.Unavailable:
					return
				default:
					t.Errorf("client %d, call %d: %v", i, n, err)
					return
				}
				if n == 10 {
					began <- struct{}{}
				}
			}
		})
		clients.Go(func() { // streams
			s, err := client.ModelStreamInfer(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			for n := 0; ; n++ {
				if err := s.Send(floats("m", 1)); err != nil && err != io.EOF {
					t.Errorf("client %d, request %d: %v", i, n, err)
					return
				}
				a, err := s.Recv()
				if err != nil {
					if status.Code(err) != codes.Unavailable {
						t.Errorf("client %d, answer %d: %v", i, n, err)
					}
					return
				}
				if a.ErrorMessage != "" && !strings.HasPrefix(a.ErrorMessage, "Draining: ") {
					t.Errorf("client %d, answer %d: %v", i, n, a)
				}
				if n == 10 {
					began <- struct{}{}
				}
			}
		})
	}
	// Idle streams must not delay the end.
	idle := r.stream(t.Context())
	watch := watching(t, r, "")
	for range 8 {
		<-began
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	clients.Wait()
	_, err := idle.Recv()
	failed(t, err, codes.Unavailable, "Draining")
	for {
		if _, err := watch.Recv(); err != nil {
			failed(t, err, codes.Unavailable, "Draining")
			break
		}
	}
}

// A client that stops in the middle of a message is told Draining; one that does not react to the
// GOAWAY is cut off when the time is up.
func TestShutdownDoesNotWaitForTheDead(t *testing.T) {
	r := newRig(t)
	r.echo("m", tensor.Float32)
	tap, option := tapped(3_000_000)
	conn := r.dial(option)
	half := make(chan error, 1)
	go func() {
		_, err := pb.NewGRPCInferenceServiceClient(conn).ModelInfer(t.Context(), floats("m", make([]float32, 1<<20)...))
		half <- err
	}()
	budgettest.Until(r.T, "half a message", func() bool { return r.Pool.InUse() > 0 })
	dead, err := net.Dial("tcp", r.door.Addrs()[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	// The client preface of HTTP/2, and an empty frame of settings.
	if _, err := dead.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err !=
		nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(dead, make([]byte, 9)); err != nil { // the server knows the connection
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_ = r.Stop(ctx)
	if !strings.Contains(r.Log.String(), "cut off") {
		t.Errorf("the log does not say so: %s", r.Log)
	}
	failed(t, <-half, codes.Unavailable, "Draining")
	tap.Close()
}
