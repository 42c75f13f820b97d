package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/operate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// silent is a model without inputs. It answers a request with the "n" of its parameters and -n.
func silent(name string, batched bool) containertest.Model {
	shape := tensor.Shape{2}
	if batched {
		shape = tensor.Shape{-1, 2}
	}
	return containertest.Model{
		Name: name, Batched: &batched, Feedback: true,
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int64, Shape: shape}},
		Answer: func(b *containertest.Batch) containertest.Reply {
			var values []int64
			for i := range b.Rows {
				var p struct{ N int64 }
				if len(b.Parameters) > 0 && b.Parameters[i] != "" {
					_ = json.Unmarshal([]byte(b.Parameters[i]), &p)
				}
				values = append(values, p.N, -p.N)
			}
			shape := tensor.Shape{2}
			if batched {
				shape = tensor.Shape{b.Rows, 2}
			}
			return containertest.Reply{Outputs: []tensor.Tensor{ints(shape, values...)}}
		},
	}
}

// TestWithoutInputsThroughEveryDoor: a request without tensors is one row of a model without
// inputs, and its answer has no dimension for rows. Its parameters reach the model.
func TestWithoutInputsThroughEveryDoor(t *testing.T) {
	s := start(t, nil)
	x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1}}}
	connect(t, s, containertest.Model{Name: "echo1", Batched: new(true), Inputs: x, Outputs: x})
	web, rpc, tcp := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]), newTCP(t, s.Addrs().TCP[0])
	for _, batched := range []bool{true, false} {
		name := fmt.Sprint("silent-", batched)
		c := connect(t, s, silent(name, batched))
		for _, ask := range callers(t, s) {
			if got, err := ask.ask(t.Context(), name); err != nil || strings.TrimSpace(got["y"]) != "[2] [0 0]" {
				t.Errorf("%s %s: %v, %v", name, ask.name, got, err)
			}
			_, err := ask.ask(t.Context(), name, named("x", ints(tensor.Shape{1}, 1)))
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`no input "x"; model %q takes no inputs`, name)) {
				t.Errorf("%s %s: a tensor is answered with %v", name, ask.name, err)
			}
			if _, err := ask.ask(t.Context(), "echo1"); err == nil || !strings.Contains(err.Error(), `expected 1 tensor ("x" int64 [-1]), got 0`) {
				t.Errorf("%s: without its input: %v", ask.name, err)
			}
		}
		if _, err := tcp.client.Infer(t.Context(), name, ints(tensor.Shape{1}, 1)); err == nil ||
			!strings.Contains(err.Error(), "takes no tensors, got 1") {
			t.Errorf("%s: a tensor without a name: %v", name, err)
		}

		answers := map[string]func() (string, error){
			"our client": func() (string, error) {
				m, err := shiva.NewRequest(name, []byte(`{"n":5}`))
				if err != nil {
					return "", err
				}
				a, err := tcp.client.Do(t.Context(), m)
				if err != nil {
					return "", err
				}
				defer a.Release()
				y, err := a.Output("y")
				return render(y), err
			},
			"tcp": func() (string, error) {
				a, err := tcp.client.Do(t.Context(), &shiva.Message{Namespace: name, Metadata: []byte(`{"n":5}`)})
				if err != nil {
					return "", err
				}
				defer a.Release()
				return render(a.Tensors[0]), nil
			},
			"rest": func() (string, error) {
				var a struct {
					Outputs []struct {
						Shape []int
						Data  []int64
					}
				}
				err := web.call(http.MethodPost, "/v2/models/"+name+"/infer", `{"parameters":{"n":5}}`, &a)
				if err != nil {
					return "", err
				}
				return fmt.Sprint(tensor.Shape(a.Outputs[0].Shape), a.Outputs[0].Data), nil
			},
			"grpc stream": func() (string, error) {
				stream, err := rpc.client.ModelStreamInfer(t.Context())
				if err != nil {
					return "", err
				}
				n := map[string]*pb.InferParameter{"n": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 5}}}
				if err := stream.Send(&pb.ModelInferRequest{ModelName: name, Parameters: n}); err != nil {
					return "", err
				}
				a, err := stream.Recv()
				if err != nil || a.ErrorMessage != "" {
					return "", fmt.Errorf("%v %w", a, err)
				}
				y, err := grpcTensor(a.InferResponse.Outputs[0], a.InferResponse.RawOutputContents[0])
				return render(y), err
			},
			"library": func() (string, error) {
				a, err := s.Infer(t.Context(), &Request{Name: name, Parameters: []byte(`{"n":5}`)})
				if err != nil {
					return "", err
				}
				defer a.Release()
				return render(a.Outputs[0]), nil
			},
		}
		for door, ask := range answers {
			if got, err := ask(); err != nil || strings.TrimSpace(got) != "[2] [5 -5]" {
				t.Errorf("%s %s: %s, %v", name, door, got, err)
			}
		}
		sawNoInputs(t, c.Batches(), batched)
	}
	err := web.call(http.MethodPost, "/v2/models/echo1/infer", `{"parameters":{"n":5}}`, nil)
	if err == nil || !strings.Contains(err.Error(), `expected "inputs", which is missing`) {
		t.Errorf("a model with inputs: %v", err)
	}
}

// sawNoInputs checks the batches of a container without inputs.
func sawNoInputs(t *testing.T, seen []*containertest.Batch, batched bool) {
	t.Helper()
	for _, b := range seen {
		if len(b.Inputs) != 0 || !batched && b.Rows != 1 {
			t.Errorf("batched %t: the container saw %d inputs and %d rows", batched, len(b.Inputs), b.Rows)
		}
	}
}

// TestWithoutInputsIsDescribed: what doors and tools say of a model without inputs.
func TestWithoutInputsIsDescribed(t *testing.T) {
	s := start(t, nil)
	connect(t, s, silent("silent", true))
	web, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0])
	for path, want := range map[string]string{
		"/v2/models/silent":        `"inputs":[],"outputs":[{"name":"y","datatype":"INT64","shape":[-1,2]}]`,
		"/v2/models/silent/config": `"input":[],"output":[{"name":"y","data_type":"TYPE_INT64","dims":[2]}]`,
	} {
		var text json.RawMessage
		if err := web.call(http.MethodGet, path, "", &text); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %s, %v, expected %s in it", path, text, err, want)
		}
	}
	m, err := rpc.client.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: "silent"})
	if err != nil || len(m.Inputs) != 0 || len(m.Outputs) != 1 {
		t.Errorf("grpc: %v, %v", m, err)
	}
	if e := s.report.Explain("silent"); len(e) != 1 || len(e[0].Sentences) == 0 {
		t.Errorf("explain: %v", e)
	}
	for _, m := range s.report.Models() {
		if m.Name == "silent" && (m.Inputs == nil || len(m.Inputs) != 0) {
			t.Errorf("status: its inputs are %v", m.Inputs)
		}
	}
	trials := operate.Trials{Gate: s.gate, Door: s.library}
	if tried, err := trials.Try(t.Context(), operate.Trial{Name: "silent", Input: []byte("{}")}); err != nil ||
		len(tried.Outputs) != 1 || tried.Outputs[0].Elements != 2 {
		t.Errorf("tried: %+v, %v", tried, err)
	}
	if _, err := trials.Try(t.Context(), operate.Trial{Name: "silent", Input: []byte("[[1]]")}); err == nil ||
		!strings.Contains(err.Error(), "expected {}") {
		t.Errorf("tried with an input: %v", err)
	}
}

// TestWithoutInputsInCacheAndStream: only parameters tell requests to a model without inputs apart.
// Frames of a stream need no tensors.
func TestWithoutInputsInCacheAndStream(t *testing.T) {
	s := start(t, func(c *config.Config) {
		m := c.Model("silent")
		m.Cache = 1 << 20
		c.Models["silent"] = m
	})
	c := connect(t, s, silent("silent", true))
	client := dial(t, s)
	ask := func(metadata, want string) {
		a, err := client.Do(t.Context(), &shiva.Message{Namespace: "silent", Metadata: []byte(metadata)})
		if err != nil {
			t.Errorf("%s: %v", metadata, err)
			return
		}
		defer a.Release()
		if got := render(a.Tensors[0]); strings.TrimSpace(got) != want {
			t.Errorf("%s: %s, expected %s", metadata, got, want)
		}
	}
	var asked sync.WaitGroup
	for i := range 40 {
		n := i % 4
		asked.Go(func() { ask(fmt.Sprintf(`{"n":%d}`, n), fmt.Sprintf("[2] [%d %d]", n, -n)) })
	}
	asked.Wait()
	if rows := executed(c); rows != 4 {
		t.Errorf("%d rows were executed for 4 different requests", rows)
	}
	stream, err := client.Stream(t.Context(), shiva.StreamConfig{Model: "silent", Name: "sensor"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Push(t.Context(), shiva.Frame{Metadata: []byte(`{"n":7}`)}); err != nil {
		t.Fatal(err)
	}
	for a, err := range stream.Answers(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if y, err := a.Output("y"); err != nil || strings.TrimSpace(render(y)) != "[2] [7 -7]" {
			t.Errorf("a frame is answered with %v, %v", y, err)
		}
		a.Release()
		break
	}
}

// TestWithoutInputsInAnApplication: an application of models without inputs answers and learns, and
// the models get its feedback.
func TestWithoutInputsInAnApplication(t *testing.T) {
	s := start(t, nil)
	connect(t, s, silent("a", true))
	connect(t, s, silent("b", true))
	for name, policy := range map[string]string{"app": "exp3", "all": "ensemble"} {
		if _, err := registry(t, s).Create(t.Context(),
			apps.Definition{Name: name, Models: []string{"a", "b"}, Policy: policy}); err != nil {
			t.Fatal(err)
		}
		for _, ask := range callers(t, s) {
			if got, err := ask.ask(t.Context(), name); err != nil || strings.TrimSpace(got["y"]) != "[2] [0 0]" {
				t.Errorf("%s %s: %v, %v", name, ask.name, got, err)
			}
		}
	}
	client := dial(t, s)
	for _, m := range []shiva.Message{{Namespace: "app", Metadata: []byte(`{"id":"q","n":3}`)},
		{Namespace: "app/update", Metadata: []byte(`{"id":"q","loss":0.5}`)}} {
		a, err := client.Do(t.Context(), &m)
		if err != nil {
			t.Fatalf("%s: %v", m.Namespace, err)
		}
		a.Release()
	}
	budgettest.Until(t, "the model that answered to get the feedback", func() bool {
		n := 0
		for _, session := range s.containers.Listener().Sessions() {
			n += int(session.Feedback)
		}
		return n == 1
	})
}
