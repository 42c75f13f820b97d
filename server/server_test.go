package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// start starts a server on free ports, with an echo model in the process.
func start(t testing.TB, change func(*config.Config)) *Server {
	t.Helper()
	return startLogging(t, nil, change)
}

func startLogging(t testing.TB, log *slog.Logger, change func(*config.Config)) *Server {
	t.Helper()
	s := unstarted(t, log, change)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

// unstarted makes the server of start without starting it.
func unstarted(t testing.TB, log *slog.Logger, change func(*config.Config)) *Server {
	t.Helper()
	cfg := config.Default()
	free := config.Addrs{"127.0.0.1:0"}
	cfg.TCP.Listen, cfg.REST.Listen, cfg.GRPC.Listen, cfg.Admin.Listen, cfg.Containers.Listen = free, free, free,
		free[0], free
	cfg.Containers.ExpectedWithin = 0
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	spec := scheduler.Spec{Inputs: x, Outputs: x, Platform: "echo"}
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "echo", Version: "1"}, spec,
		scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

func stop(t testing.TB, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if left := takenOf(s); left != "" {
		budgettest.Until(t, "quotas are given back: "+left, func() bool { return takenOf(s) == "" })
	}
}

// takenOf returns the quotas in use; "": none.
func takenOf(s *Server) (taken string) {
	all := s.addresses.Top(1 << 20)
	for _, u := range s.identities.Usage() {
		all = append(all, u)
	}
	for _, u := range all {
		if u.Has != [access.Quotas]int64{} {
			taken += fmt.Sprintf("%s has %v of %v; ", u.Payer, u.Has, [...]access.Quota{0, 1, 2, 3, 4, 5, 6})
		}
	}
	return taken
}

func echo(b *scheduler.Batch) error {
	outputs := make([]tensor.Tensor, len(b.Parts[0].Inputs))
	for k := range outputs {
		parts := make([]tensor.Tensor, len(b.Parts))
		for i := range b.Parts {
			parts[i] = b.Parts[i].Inputs[k]
		}
		var err error
		if outputs[k], err = tensor.Concat(parts, nil); err != nil {
			return err
		}
	}
	b.Complete(outputs, nil)
	return nil
}

func ask(t *testing.T, s *Server) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := shiva.Dial(ctx, s.Addrs().TCP[0].String())
	if err != nil {
		return err
	}
	defer c.Close()
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Do(ctx, &shiva.Message{Namespace: "echo", Tensors: []tensor.Tensor{x}})
	if err != nil {
		return err
	}
	m.Release()
	return nil
}

func get(t *testing.T, s *Server, path string, v any) int {
	t.Helper()
	resp, err := http.Get("http://" + s.Addrs().Admin.String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if v != nil {
		if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode
}

func TestServerFromStartToStop(t *testing.T) {
	before := runtime.NumGoroutine()
	s := start(t, nil)
	if err := ask(t, s); err != nil {
		t.Error(err)
	}
	var status admin.Status
	if code := get(t, s, "/v1/status", &status); code != http.StatusOK || !status.Readiness.Ready ||
		status.Listen.TCP[0] != s.Addrs().TCP[0].String() || status.Listen.REST[0] != s.Addrs().REST[0].String() ||
		status.Listen.GRPC[0] != s.Addrs().GRPC[0].String() || len(status.Doors) != 3 || status.Version != Version {
		t.Errorf("status %d: %+v", code, status)
	}
	var models admin.ModelList
	if get(t, s, "/v1/models", &models); len(models.Models) != 1 || models.Models[0].Name != "echo" ||
		models.Models[0].Inputs[0].Datatype != "INT32" || models.Models[0].MaxBatch != 128 || !models.Models[0].Ready {
		t.Errorf("models: %+v", models)
	}
	addrs := s.Addrs()
	http.DefaultClient.CloseIdleConnections()
	stop(t, s)
	stop(t, s) // stopping twice is allowed
	for _, a := range []net.Addr{addrs.TCP[0], addrs.Containers[0], addrs.Admin} {
		if c, err := net.Dial("tcp", a.String()); err == nil {
			c.Close()
			t.Errorf("something still listens on %s", a)
		}
	}
	// gnet's goroutine pool keeps a cleaner or two for the life of the process.
	const pool = 2
	budgettest.Until(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= before+pool })
}

func TestReadinessFollowsRequiredModels(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Server.RequiredModels = []string{"echo", "other"} })
	var r admin.Readiness
	if code := get(t, s, "/readyz", &r); code != http.StatusServiceUnavailable || r.Ready ||
		!slices.Equal(r.Missing, []string{"other"}) {
		t.Errorf("%d %+v", code, r)
	}
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	replica, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "other", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x},
		scheduler.WorkerFunc(echo), scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if code := get(t, s, "/readyz", nil); code != http.StatusOK {
		t.Errorf("with all models: %d", code)
	}
	replica.Remove(errors.New("gone"))
	if code := get(t, s, "/readyz", nil); code != http.StatusServiceUnavailable {
		t.Errorf("with one gone again: %d", code)
	}
	if err := ask(t, s); err != nil {
		t.Errorf("not ready is no reason to refuse: %v", err)
	}
}

// A failed Start undoes its steps and returns the reason.
func TestStartUndoesItself(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, change := range map[string]func(*config.Config){
		"tcp":        func(c *config.Config) { c.TCP.Listen = config.Addrs{taken.Addr().String()} },
		"rest":       func(c *config.Config) { c.REST.Listen = config.Addrs{taken.Addr().String()} },
		"grpc":       func(c *config.Config) { c.GRPC.Listen = config.Addrs{taken.Addr().String()} },
		"containers": func(c *config.Config) { c.Containers.Listen = config.Addrs{taken.Addr().String()} },
		"admin":      func(c *config.Config) { c.Admin.Listen = taken.Addr().String() },
	} {
		cfg := config.Default()
		free := config.Addrs{"127.0.0.1:0"}
		cfg.TCP.Listen, cfg.REST.Listen, cfg.GRPC.Listen, cfg.Admin.Listen, cfg.Containers.Listen = free, free, free,
			free[0], free
		change(&cfg)
		s, err := New(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("%s: expected the address to be in use, got %v", name, err)
		}
	}
}

// dialGRPC returns a connection to a server's gRPC door, which ends with the test.
func dialGRPC(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.Addrs().GRPC[0].String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// The same model over gRPC, counted at that door; a drain includes that door, too.
func TestGRPCDoor(t *testing.T) {
	s := start(t, nil)
	c := pb.NewGRPCInferenceServiceClient(dialGRPC(t, s))
	q := &pb.ModelInferRequest{ModelName: "echo",
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: "INT32", Shape: []int64{2},
			Contents: &pb.InferTensorContents{IntContents: []int32{7, -7}}}}}
	a, err := c.ModelInfer(t.Context(), q)
	if err != nil || string(a.RawOutputContents[0]) != "\x07\x00\x00\x00\xf9\xff\xff\xff" {
		t.Errorf("%v %v", a, err)
	}
	var status admin.Status
	get(t, s, "/v1/status", &status)
	if d := status.Doors[2]; d.Name != "grpc" || d.Connections != 1 || d.InFlight != 0 {
		t.Errorf("%+v", d)
	}
	if a, err := c.RepositoryIndex(t.Context(), &pb.RepositoryIndexRequest{}); err != nil || len(a.Models) != 1 ||
		a.Models[0].State != "READY" {
		t.Errorf("%v %v", a, err)
	}
	stop(t, s)
	if _, err := c.ModelInfer(t.Context(), q); grpcstatus.Code(err) != codes.Unavailable {
		t.Errorf("after the end: %v", err)
	}
}

func TestDoorsCanBeLeftOut(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.REST.Listen, c.GRPC.Listen, c.Admin.Listen, c.Containers.Listen = nil, nil, "", nil
	})
	if a := s.Addrs(); a.REST != nil || a.GRPC != nil || a.Admin != nil || len(a.Containers) != 0 || a.TCP == nil {
		t.Errorf("%+v", a)
	}
	if err := ask(t, s); err != nil {
		t.Error(err)
	}
}

// A model's own settings apply, even if they are zero and the defaults are not.
func TestModelSettingsHold(t *testing.T) {
	s := start(t, func(c *config.Config) {
		c.Defaults.Delay = 5 * time.Millisecond
		c.Defaults.MaxBatch = 7
		own := c.Model("echo")
		own.Delay, own.MaxBatch = 0, 0
		c.Models["echo"] = own
	})
	if cfg := s.Scheduler().ModelConfig("echo"); cfg.Delay != 0 || cfg.MaxBatch != 0 {
		t.Errorf("echo: delay %v, max_batch %d", cfg.Delay, cfg.MaxBatch)
	}
	if cfg := s.Scheduler().ModelConfig("any"); cfg.Delay != 5*time.Millisecond || cfg.MaxBatch != 7 {
		t.Errorf("any: delay %v, max_batch %d", cfg.Delay, cfg.MaxBatch)
	}
}

// A client over HTTP is served by the same models, and a drain answers requests in flight and
// refuses others.
func TestRESTDoor(t *testing.T) {
	s := start(t, nil)
	inside := make(chan struct{})
	finish := make(chan struct{})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}}
	slow := scheduler.WorkerFunc(func(b *scheduler.Batch) error {
		close(inside)
		go func() {
			<-finish
			_ = echo(b)
		}()
		return nil
	})
	if _, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "slow", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x}, slow, scheduler.ReplicaOptions{}); err != nil {
		t.Fatal(err)
	}
	infer := func(model string) string {
		body := strings.NewReader(`{"inputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`)
		resp, err := http.Post("http://"+s.Addrs().REST[0].String()+"/v2/models/"+model+"/infer", "", body)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.Status + " " + string(text)
	}
	if got := infer("echo"); !strings.Contains(got, `200 OK {"model_name":"echo","model_version":"1","outputs":[{"name":"x","datatype":"INT32","shape":[1,2],"data":[1,2]}]}`) {
		t.Error(got)
	}
	answer := make(chan string)
	go func() { answer <- infer("slow") }()
	<-inside
	var status admin.Status
	if get(t, s, "/v1/status", &status); len(status.Doors) != 3 || status.Doors[1].Name != "rest" ||
		status.Doors[1].InFlight != 1 {
		t.Errorf("%+v", status.Doors)
	}
	stopped := make(chan struct{})
	go func() { stop(t, s); close(stopped) }()
	budgettest.Until(t, "new requests are refused while it drains", func() bool {
		got := infer("echo")
		return strings.Contains(got, "503 Service Unavailable") && strings.Contains(got, "draining")
	})
	close(finish)
	if got := <-answer; !strings.HasPrefix(got, "200 OK") {
		t.Error(got)
	}
	<-stopped
	http.DefaultClient.CloseIdleConnections()
}

// A container that is stuck with a batch, whose client has its answer, does not keep the server
// from a clean stop.
func TestStopWithStuckContainer(t *testing.T) {
	t.Parallel() // it waits
	s := start(t, nil)
	got := make(chan struct{})
	c, err := containertest.Dial(t.Context(), s.containers.Listener().Dialable()[0], containertest.Model{
		Name: "stuck", Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1, 2}}},
		Answer: func(*containertest.Batch) containertest.Reply {
			close(got)
			return containertest.Reply{Silent: true}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	conn, err := shiva.Dial(t.Context(), s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	x, err := tensor.FromSlice(tensor.Shape{2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Do(t.Context(),
		&shiva.Message{Namespace: "stuck", Metadata: []byte(`{"timeout_ms":20}`), Tensors: []tensor.Tensor{x}})
	if remote, ok := errors.AsType[*shiva.RemoteError](err); !ok || remote.Type != shiva.DeadlineExceeded {
		t.Errorf("got %v, expected the deadline", err)
	}
	<-got
	stop(t, s) // fails the test on an error
}

// A client that does not read its answers does not keep the server from a clean stop, nor the other
// doors from closing.
func TestStopWithStalledClient(t *testing.T) {
	t.Parallel() // it waits
	// However long the requests take to send, only the stop should end this client.
	s := start(t, func(c *config.Config) { c.TCP.StallTimeout = time.Hour })
	conn, err := net.Dial("tcp", s.Addrs().TCP[0].String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	x, err := tensor.FromSlice(tensor.Shape{4096, 2}, make([]int32, 8192))
	if err != nil {
		t.Fatal(err)
	}
	question, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "echo", Tensors: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	// 512 answers are 16 MiB, more than sockets hold; the server may stop reading earlier.
	for range 512 {
		if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(question); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	stop(t, s) // fails the test on an error
}
