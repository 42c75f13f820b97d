package server

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/shiva/tensor"
)

// inside starts a server that listens nowhere, with the echo model.
func inside(t *testing.T) *Server {
	t.Helper()
	return start(t, func(c *config.Config) {
		c.TCP.Listen, c.REST.Listen, c.GRPC.Listen, c.Admin.Listen, c.Containers.Listen = nil, nil, nil, "", nil
	})
}

func TestServerWithoutSockets(t *testing.T) {
	s := inside(t)
	if a := s.Addrs(); a.TCP != nil || a.REST != nil || a.GRPC != nil || a.Admin != nil || len(a.Containers) != 0 {
		t.Errorf("it listens on %+v", a)
	}
	x, err := tensor.FromSlice(tensor.Shape{2, 2}, []int32{1, 2, 3, 4})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Infer(t.Context(), &Request{Name: "echo", Inputs: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	if y, err := tensor.Values[int32](a.Outputs[0]); err != nil || y[3] != 4 ||
		!a.Outputs[0].Shape.Equal(tensor.Shape{2, 2}) || a.Outputs[0].Name != "x" ||
		a.Model != "echo" || a.Version != "1" || a.Choice != nil {
		t.Errorf("got %+v, %v", a, err)
	}
	a.Release()
	a.Release() // releasing twice is allowed
	row := x
	row.Shape, row.Data = tensor.Shape{2}, x.Data[:8]
	if a, err = s.Infer(t.Context(), &Request{Name: "echo", Inputs: []tensor.Tensor{row}}); err != nil ||
		!a.Outputs[0].Shape.Equal(tensor.Shape{2}) {
		t.Fatalf("one row: %+v, %v", a, err)
	}
	a.Release()
	stopEmpty(t, s)
	if _, err := s.Infer(t.Context(), &Request{Name: "echo", Inputs: []tensor.Tensor{x}}); !errors.Is(err,
		scheduler.ErrDraining) {
		t.Errorf("after shutdown: %v", err)
	}
}

// The inputs belong to the caller again when Infer has returned, whatever the result: a worker that
// was given up reads the original values, not later ones.
func TestInputsStayTheCallers(t *testing.T) {
	s := inside(t)
	began, resume, seen := make(chan struct{}), make(chan struct{}), make(chan int32, 1)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int32, Shape: tensor.Shape{-1}}}
	_, err := s.Scheduler().AddReplica(scheduler.ModelID{Name: "stuck", Version: "1"},
		scheduler.Spec{Inputs: x, Outputs: x},
		scheduler.WorkerFunc(func(b *scheduler.Batch) error {
			go func() {
				close(began)
				<-resume
				values, _ := tensor.Values[int32](b.Parts[0].Inputs[0])
				v := values[0]
				b.Fail(errors.New("not today"))
				seen <- v // last: Fail releases the inputs, and Shutdown waits for no worker
			}()
			return nil
		}), scheduler.ReplicaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	values := []int32{7}
	in, err := tensor.FromSlice(tensor.Shape{1}, values)
	if err != nil {
		t.Fatal(err)
	}
	in.Data = append([]byte{}, in.Data...)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-began; cancel() }()
	if _, err := s.Infer(ctx, &Request{Name: "stuck", Inputs: []tensor.Tensor{in}}); !errors.Is(err,
		scheduler.ErrCanceled) {
		t.Fatalf("got %v", err)
	}
	clear(in.Data)
	in.Shape[0] = 9
	close(resume)
	if v := <-seen; v != 7 {
		t.Errorf("the worker read %d, expected what was asked", v)
	}

	buf, err := s.pool.Get(8)
	if err != nil {
		t.Fatal(err)
	}
	counted := tensor.Tensor{DType: tensor.Int32, Shape: tensor.Shape{1, 2}, Data: buf.Bytes(), Buf: buf}
	for _, name := range []string{"echo", "nobody"} {
		if a, err := s.Infer(t.Context(), &Request{Name: name, Inputs: []tensor.Tensor{counted}}); err == nil {
			a.Release()
		}
	}
	counted.Release() // the only reference that is left
	stopEmpty(t, s)
}

func TestLibraryErrors(t *testing.T) {
	s := inside(t)
	x := pairOfInts(t)
	short := x
	short.Data = x.Data[:4]
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx  context.Context
		q    Request
		want error
		says string
	}{
		{t.Context(), Request{Name: "ech", Inputs: []tensor.Tensor{x}}, scheduler.ErrNotFound, `"echo"`},
		{t.Context(), Request{Name: "echo", Version: "9", Inputs: []tensor.Tensor{x}}, scheduler.ErrNotFound, `"9"`},
		{t.Context(), Request{Name: "echo"}, scheduler.ErrInvalidInput, "expected 1 tensor"},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{short}}, scheduler.ErrInvalidInput, `input ""`},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{x}, Outputs: []string{"y"}},
			scheduler.ErrInvalidInput, `"y"`},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{x}, Candidates: []string{"echo"}},
			scheduler.ErrInvalidInput, "is a model"},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{x}, Candidates: []string{}},
			scheduler.ErrInvalidInput, "1 to 64"},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{x}, Parameters: []byte(`{"a"`)},
			scheduler.ErrInvalidInput, "JSON object"},
		{t.Context(), Request{Name: "echo", Inputs: []tensor.Tensor{x}, Timeout: 1}, scheduler.ErrDeadlineExceeded, ""},
		{ended, Request{Name: "echo", Inputs: []tensor.Tensor{x}, Timeout: time.Hour}, nil, ""},
	} {
		a, err := s.Infer(tc.ctx, &tc.q)
		if err == nil {
			a.Release()
		}
		if tc.want != nil && (!errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says)) {
			t.Errorf("%+v: got %v, expected %v that says %s", tc.q, err, tc.want, tc.says)
		}
	}
	if err := s.SetApplication(t.Context(), Application{Name: "a b/", Policy: "none"}); !errors.Is(err,
		scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), "models: none") {
		t.Errorf("a wrong application: %v", err)
	}
	if err := s.DeleteApplication(t.Context(), "a"); !errors.Is(err, scheduler.ErrNotFound) {
		t.Errorf("an unknown one: %v", err)
	}
	if err := s.SetApplication(t.Context(), Application{Name: "a", Models: []string{"echo"}}); err != nil {
		t.Fatal(err)
	}
	a, err := s.Infer(t.Context(), &Request{Name: "a", Inputs: []tensor.Tensor{x}, Candidates: []string{"echo/1"}})
	if err != nil || a.Choice == nil || a.Choice.Confidence != 1 || a.Model != "echo" {
		t.Fatalf("%+v %v", a, err)
	}
	a.Release()
	for _, f := range []Feedback{{Application: "a", ID: "never"}, {Application: "a", Inputs: []tensor.Tensor{x}},
		{Application: "echo", ID: "x", Label: 1}, {Application: "a", Label: func() {}},
		{Application: "a", Inputs: []tensor.Tensor{x}, Label: 1, Loss: new(0.5)},
		{Application: "a", Inputs: []tensor.Tensor{x}, Losses: map[string]float64{"echo": 1}},
		{Application: "a", Inputs: []tensor.Tensor{x}, Loss: new(math.NaN())},
		{Application: "a", Inputs: []tensor.Tensor{x}, Losses: map[string]float64{"echo/1": 2}}} {
		if _, _, err := s.Learn(t.Context(), &f); err == nil ||
			f.Inputs != nil && !errors.Is(err, scheduler.ErrInvalidInput) {
			t.Errorf("feedback %+v: %v", f, err)
		}
	}
	if learned, rounds, err := s.Learn(t.Context(),
		&Feedback{Application: "a", Inputs: []tensor.Tensor{x}, Losses: map[string]float64{"echo/1": 1}}); err != nil ||
		!learned || rounds != 1 {
		t.Errorf("feedback: %v %d %v", learned, rounds, err)
	}
	if learned, rounds, err := s.Learn(t.Context(),
		&Feedback{Application: "a", Inputs: []tensor.Tensor{x}, Loss: new(0.5)}); err != nil || !learned ||
		rounds != 2 {
		t.Errorf("feedback: %v %d %v", learned, rounds, err)
	}
	if err := s.DeleteApplication(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	fresh, err := New(config.Default(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fresh.Infer(t.Context(), &Request{Name: "echo"}); !errors.Is(err, scheduler.ErrUnavailable) ||
		!strings.Contains(err.Error(), "has not been started") {
		t.Errorf("before the start: %v", err)
	}
	if err := fresh.SetApplication(t.Context(), Application{Name: "a", Models: []string{"m"}}); !errors.Is(err,
		scheduler.ErrUnavailable) {
		t.Errorf("before the start: %v", err)
	}
	stop(t, fresh)
}

// The outputs of an application are unknown before one of its models has registered, so a request
// that names one is retryable until then.
func TestOutputsBeforeContainers(t *testing.T) {
	s := start(t, nil)
	if err := s.SetApplication(t.Context(), Application{Name: "early", Models: []string{"later"}}); err != nil {
		t.Fatal(err)
	}
	x, err := tensor.FromSlice(tensor.Shape{1, 2}, []int32{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Infer(t.Context(),
		&Request{Name: "early", Inputs: []tensor.Tensor{x}, Outputs: []string{"x"}}); !errors.Is(err,
		scheduler.ErrUnavailable) {
		t.Error(err)
	}
}
