package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/predict"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// A doorway is one door, with the extensions that it announces and their use there.
type doorway struct {
	name      string
	announced []string
	// uses has, for each extension, a function that uses it as a client does, and returns the
	// result: see extensionsWork.
	uses map[string]func() (string, error)
	// missing are calls of extensions that are not announced. Each must return an error that says
	// so.
	missing map[string]func() error
}

// extensionsWork has the result of using an extension, through any door. The model has seen one
// request of two rows, with the values 0 and 5.
var extensionsWork = map[string]string{
	"binary_tensor_data":  "8 bytes",
	"classification":      "5.000000:1 0.000000:0",
	"model_configuration": "TYPE_FP32 [2]",
	"model_repository":    "m READY; loaded",
	"parameters":          `{"colour":"blue"}`,
	"schedule_policy":     "priority 2; DeadlineExceeded",
	"statistics":          "m 2 rows",
}

// Announced extensions work at each door, and others do not.
func TestExtensions(t *testing.T) {
	s := start(t, nil)
	c := join(t, s, "m", tensor.Float32, tensor.Shape{-1, 2}, nil)
	join(t, s, "stuck", tensor.Float32, tensor.Shape{-1, 2}, func(*containertest.Batch) containertest.Reply {
		return containertest.Reply{Silent: true}
	})
	if _, err := askLibrary(t.Context(), s, "m",
		tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{2, 2}, Data: make([]byte, 16)}, 0); err != nil {
		t.Fatal(err)
	}
	for _, d := range []doorway{restDoorway(t, s, c), grpcDoorway(t, s, c), tcpDoorway(t, s, c)} {
		t.Run(d.name, func(t *testing.T) {
			for _, name := range d.announced {
				if d.uses[name] == nil {
					t.Errorf("%q is announced, and nobody knows how to use it", name)
				}
			}
			for name, use := range d.uses {
				if !slices.Contains(d.announced, name) {
					t.Errorf("%q is not announced: %q", name, d.announced)
				}
				if got, err := use(); err != nil || got != extensionsWork[name] {
					t.Errorf("%q: got %q, %v, expected %q", name, got, err, extensionsWork[name])
				}
			}
			for name, call := range d.missing {
				f, ok := call().(*refusal)
				if slices.Contains(d.announced, name) || !ok ||
					f.code != http.StatusNotFound && f.code != int(codes.Unimplemented) || f.text == "" {
					t.Errorf("%q is not offered, and is answered with %v", name, f)
				}
			}
		})
	}
}

// pair is a row of the model.
var pair, _ = tensor.FromSlice(tensor.Shape{1, 2}, []float32{0, 5})

// lastBatch returns the last batch that the container got.
func lastBatch(c *containertest.Container) *containertest.Batch {
	b := c.Batches()
	return b[len(b)-1]
}

// call sends a JSON body, none if it is empty, to an HTTP path, and reads the answer.
func (c *httpClient) call(method, path, body string, answer any) error {
	q, err := http.NewRequest(method, c.base+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	text, _, err := c.do(q)
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	return err
}

func restDoorway(t *testing.T, s *Server, container *containertest.Container) doorway {
	t.Helper()
	c := newHTTP(t, s.Addrs().REST[0])
	var server struct{ Extensions []string }
	if err := c.call("GET", "/v2", "", &server); err != nil {
		t.Fatal(err)
	}
	const input = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[0,5]}]`
	path := func(method, path string) func() error {
		return func() error { return c.call(method, path, "", nil) }
	}
	return doorway{name: "rest", announced: server.Extensions, uses: map[string]func() (string, error){
		"binary_tensor_data": func() (string, error) {
			y, err := c.askBinary(t.Context(), "m", pair, 0)
			if !bytes.Equal(y.Data, pair.Data) {
				return "other bytes", err
			}
			return fmt.Sprint(len(y.Data), " bytes"), err
		},
		"classification": func() (string, error) {
			var a struct{ Outputs []struct{ Data []string } }
			err := c.call("POST", "/v2/models/m/infer", input+`,"outputs":[{"name":"x","parameters":{"classification":2}}]}`, &a)
			if err != nil {
				return "", err
			}
			return strings.Join(a.Outputs[0].Data, " "), nil
		},
		"model_configuration": func() (string, error) {
			var a struct {
				Input []struct {
					Type string `json:"data_type"`
					Dims []int
				}
			}
			if err := c.call("GET", "/v2/models/m/config", "", &a); err != nil {
				return "", err
			}
			return fmt.Sprint(a.Input[0].Type, " ", a.Input[0].Dims), nil
		},
		"model_repository": func() (string, error) {
			var index []struct{ Name, State string }
			if err := c.call("POST", "/v2/repository/index", "", &index); err != nil {
				return "", err
			}
			i := slices.IndexFunc(index, func(m struct{ Name, State string }) bool { return m.Name == "m" })
			return index[i].Name + " " + index[i].State + "; loaded", c.call("POST", "/v2/repository/models/m/load", "{}", nil)
		},
		"parameters": func() (string, error) {
			err := c.call("POST", "/v2/models/m/infer", input+`,"parameters":{"colour":"blue"}}`, nil)
			return lastBatch(container).Parameters[0], err
		},
		"schedule_policy": func() (string, error) {
			if err := c.call("POST", "/v2/models/m/infer", input+`,"parameters":{"priority":3}}`, nil); err != nil {
				return "", err
			}
			priority := lastBatch(container).Priority
			err := c.call("POST", "/v2/models/stuck/infer", input+`,"parameters":{"timeout":20000}}`, nil)
			f, ok := err.(*refusal)
			if !ok || f.code != http.StatusGatewayTimeout {
				return "", err
			}
			return fmt.Sprintf("priority %d; DeadlineExceeded", priority[0]), nil
		},
		"statistics": func() (string, error) {
			before, err := c.rowsOf("m")
			if err != nil {
				return "", err
			}
			two := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{2, 2}, Data: make([]byte, 16)}
			if _, err := c.askJSON(t.Context(), "m", two, 0); err != nil {
				return "", err
			}
			after, err := c.rowsOf("m") // after that request
			return fmt.Sprintf("m %d rows", after-before), err
		},
	}, missing: map[string]func() error{
		"system_shared_memory":   path("GET", "/v2/systemsharedmemory/status"),
		"system_shared_memory 2": path("POST", "/v2/systemsharedmemory/region/r/register"),
		"cuda_shared_memory":     path("POST", "/v2/cudasharedmemory/region/r/register"),
		"trace":                  path("GET", "/v2/trace/setting"),
		"trace 2":                path("POST", "/v2/models/m/trace/setting"),
		"logging":                path("GET", "/v2/logging"),
	}}
}

func (c *httpClient) rowsOf(model string) (int, error) {
	var a struct {
		Stats []struct {
			Rows int `json:"inference_count"`
		} `json:"model_stats"`
	}
	if err := c.call("GET", "/v2/models/"+model+"/stats", "", &a); err != nil {
		return 0, err
	}
	return a.Stats[0].Rows, nil
}

func grpcDoorway(t *testing.T, s *Server, container *containertest.Container) doorway {
	t.Helper()
	c := newGRPC(t, s.Addrs().GRPC[0]).client
	ctx := t.Context()
	server, err := c.ServerMetadata(ctx, &pb.ServerMetadataRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(model, parameter string, p *pb.InferParameter) error {
		q := grpcQuestion(model, pair, 0)
		q.RawInputContents = [][]byte{pair.Data}
		q.Parameters = map[string]*pb.InferParameter{parameter: p}
		_, err := c.ModelInfer(ctx, q)
		return err
	}
	whole := func(n int64) *pb.InferParameter {
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: n}}
	}
	rowsOf := func() (uint64, error) {
		a, err := c.ModelStatistics(ctx, &pb.ModelStatisticsRequest{Name: "m"})
		if err != nil {
			return 0, err
		}
		return a.ModelStats[0].InferenceCount, nil
	}
	return doorway{name: "grpc", announced: server.Extensions, uses: map[string]func() (string, error){
		"classification": func() (string, error) {
			q := grpcQuestion("m", pair, 0)
			q.RawInputContents = [][]byte{pair.Data}
			q.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{
				{Name: "x", Parameters: map[string]*pb.InferParameter{"classification": whole(2)}}}
			a, err := c.ModelInfer(ctx, q)
			if err != nil {
				return "", err
			}
			texts, err := tensor.Strings(tensor.Tensor{DType: tensor.Bytes, Shape: tensor.Shape{2},
				Data: a.RawOutputContents[0]})
			return strings.Join(texts, " "), err
		},
		"model_configuration": func() (string, error) {
			a, err := c.ModelConfig(ctx, &pb.ModelConfigRequest{Name: "m"})
			return fmt.Sprint(a.GetConfig().GetInput()[0].GetDataType(), " ",
				a.GetConfig().GetInput()[0].GetDims()), err
		},
		"model_repository": func() (string, error) {
			a, err := c.RepositoryIndex(ctx, &pb.RepositoryIndexRequest{})
			if err != nil {
				return "", err
			}
			i := slices.IndexFunc(a.Models, func(m *pb.RepositoryIndexResponse_ModelIndex) bool { return m.Name == "m" })
			_, err = c.RepositoryModelLoad(ctx, &pb.RepositoryModelLoadRequest{ModelName: "m"})
			return a.Models[i].Name + " " + a.Models[i].State + "; loaded", err
		},
		"parameters": func() (string, error) {
			err := ask("m", "colour", &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: "blue"}})
			return lastBatch(container).Parameters[0], err
		},
		"schedule_policy": func() (string, error) {
			if err := ask("m", "priority", whole(3)); err != nil {
				return "", err
			}
			priority := lastBatch(container).Priority
			if err := ask("stuck", "timeout", whole(20_000)); status.Code(err) != codes.DeadlineExceeded {
				return "", err
			}
			return fmt.Sprintf("priority %d; DeadlineExceeded", priority[0]), nil
		},
		"statistics": func() (string, error) {
			before, err := rowsOf()
			if err != nil {
				return "", err
			}
			q := grpcQuestion("m", tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{2, 2}}, 0)
			q.RawInputContents = [][]byte{make([]byte, 16)}
			if _, err := c.ModelInfer(ctx, q); err != nil {
				return "", err
			}
			after, err := rowsOf()
			return fmt.Sprintf("m %d rows", after-before), err
		},
	}, missing: map[string]func() error{
		"system_shared_memory": func() error {
			_, err := c.SystemSharedMemoryStatus(ctx, &pb.SystemSharedMemoryStatusRequest{})
			return grpcFault(err)
		},
		"cuda_shared_memory": func() error {
			_, err := c.CudaSharedMemoryRegister(ctx, &pb.CudaSharedMemoryRegisterRequest{})
			return grpcFault(err)
		},
		"trace":   func() error { _, err := c.TraceSetting(ctx, &pb.TraceSettingRequest{}); return grpcFault(err) },
		"logging": func() error { _, err := c.LogSettings(ctx, &pb.LogSettingsRequest{}); return grpcFault(err) },
	}}
}

func tcpDoorway(t *testing.T, s *Server, container *containertest.Container) doorway {
	t.Helper()
	c := newTCP(t, s.Addrs().TCP[0]).client
	ask := func(route, metadata string, tensors ...tensor.Tensor) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		m, err := c.Do(ctx, &shiva.Message{Namespace: route, Metadata: []byte(metadata), Tensors: tensors})
		if err != nil {
			return "", shivaFault(err)
		}
		defer m.Release()
		return string(m.Metadata), nil
	}
	reply, err := ask("v2", "")
	if err != nil {
		t.Fatal(err)
	}
	var server struct{ Extensions []string }
	if err := json.Unmarshal([]byte(reply), &server); err != nil {
		t.Fatal(err)
	}
	path := func(route string) func() error {
		return func() error { _, err := ask(route, ""); return err }
	}
	return doorway{name: "tcp", announced: server.Extensions, uses: map[string]func() (string, error){
		"parameters": func() (string, error) {
			_, err := ask("v2/models/m/infer", `{"parameters":{"colour":"blue"}}`, pair)
			return lastBatch(container).Parameters[0], err
		},
		"schedule_policy": func() (string, error) {
			if _, err := ask("v2/models/m/infer", `{"priority":2}`, pair); err != nil {
				return "", err
			}
			priority := lastBatch(container).Priority
			_, err := ask("v2/models/stuck/infer", `{"timeout_ms":20}`, pair)
			f, ok := err.(*refusal)
			if !ok {
				return "", err
			}
			return fmt.Sprintf("priority %d; %s", priority[0], f.kind), nil
		},
		"model_configuration": func() (string, error) {
			var a predict.ModelConfig
			reply, err := ask("v2/models/m/versions/1/config", "")
			if err == nil {
				err = json.Unmarshal([]byte(reply), &a)
			}
			if err != nil {
				return "", err
			}
			return fmt.Sprint(a.Input[0].DataType, " ", a.Input[0].Dims), err
		},
		"statistics": func() (string, error) {
			rows := func() uint64 {
				var a predict.StatisticsList
				reply, err := ask("v2/models/m/stats", "")
				if err == nil {
					err = json.Unmarshal([]byte(reply), &a)
				}
				if err != nil {
					t.Fatal(err)
				}
				return a.Models[0].InferenceCount
			}
			before := rows()
			_, err := ask("m", "",
				tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{2, 2}, Data: make([]byte, 16)})
			budgettest.Until(t, "statistics that are newer than the request", func() bool { return rows() > before })
			return fmt.Sprintf("m %d rows", rows()-before), err
		},
	}, missing: map[string]func() error{
		"model_repository":     path("v2/repository/models/m/load"),
		"model_repository 2":   path("v2/repository/models/m/unload"),
		"system_shared_memory": path("v2/systemsharedmemory/status"),
		"trace":                path("v2/trace/setting"),
		"logging":              path("v2/logging"),
	}}
}

// Each datatype has its name in a model's metadata, and in its configuration, where datatypes of
// our own are TYPE_INVALID.
func TestDatatypesAreNamed(t *testing.T) {
	s := start(t, nil)
	rest, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]).client
	for _, d := range dtypes {
		name := d.V2()
		join(t, s, "m_"+name, d, tensor.Shape{-1}, nil)
		want := "TYPE_" + name
		if d == tensor.Bytes {
			want = "TYPE_STRING"
		} else if _, has := pb.DataType_value[want]; !has {
			want = "TYPE_INVALID"
		}
		var metadata struct{ Inputs, Outputs []struct{ Datatype string } }
		var config struct {
			Input, Output []struct {
				Type string `json:"data_type"`
			}
		}
		if err := rest.call("GET", "/v2/models/m_"+name, "", &metadata); err != nil ||
			metadata.Inputs[0].Datatype != name || metadata.Outputs[0].Datatype != name {
			t.Errorf("%s: %+v %v", name, metadata, err)
		}
		if err := rest.call("GET", "/v2/models/m_"+name+"/config", "", &config); err != nil ||
			config.Input[0].Type != want || config.Output[0].Type != want {
			t.Errorf("%s: %+v %v", name, config, err)
		}
		a, err := rpc.ModelMetadata(t.Context(), &pb.ModelMetadataRequest{Name: "m_" + name})
		if err != nil || a.Inputs[0].Datatype != name || a.Outputs[0].Datatype != name {
			t.Errorf("%s: %v %v", name, a, err)
		}
		b, err := rpc.ModelConfig(t.Context(), &pb.ModelConfigRequest{Name: "m_" + name})
		if err != nil || b.Config.Input[0].DataType.String() != want || b.Config.Output[0].DataType.String() != want {
			t.Errorf("%s: %v %v", name, b, err)
		}
	}
	// Conversely, every type of a configuration is one of our datatypes.
	for name := range pb.DataType_value {
		if _, ok := tensor.FromV2(strings.TrimPrefix(name, "TYPE_")); !ok && name != "TYPE_INVALID" && name != "TYPE_STRING" {
			t.Errorf("no datatype is %s", name)
		}
	}
}

// An unknown datatype is refused by its name or number.
func TestUnknownDatatypes(t *testing.T) {
	s := start(t, nil)
	join(t, s, "m", tensor.Float32, tensor.Shape{-1}, nil)
	rest, rpc := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]).client
	for _, name := range []string{"FP8", "fp32", "FLOAT", "TYPE_FP32", "STRING", ""} {
		for _, data := range []string{`"data":[1]`, `"parameters":{"binary_data_size":4}`} {
			err := rest.call("POST", "/v2/models/m/infer",
				fmt.Sprintf(`{"inputs":[{"name":"x","datatype":%q,"shape":[1],%s}]}`, name, data), nil)
			f, ok := err.(*refusal)
			if !ok || f.code != http.StatusBadRequest || !strings.Contains(f.text, "datatype") ||
				!strings.Contains(f.text, `"`+name+`"`) && name != "" {
				t.Errorf("rest, %q: %v", name, err)
			}
		}
		q := &pb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 4)},
			Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "x", Datatype: name, Shape: []int64{1}}}}
		if _, err := rpc.ModelInfer(t.Context(), q); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
			t.Errorf("grpc, %q: %v", name, err)
		}
	}
	x, _ := tensor.FromSlice(tensor.Shape{1}, []float32{1})
	m, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: "m", Tensors: []tensor.Tensor{x}})
	if err != nil {
		t.Fatal(err)
	}
	const header, rank = 12, 1
	// 32 and 33 are our own codes, but not valid on this wire.
	for _, code := range []byte{16, 18, 31, 32, 33, 255} {
		m[header+rank] = code
		err := newTCP(t, s.Addrs().TCP[0]).send(m)
		if f, ok := err.(*refusal); !ok || f.kind != "Protocol" || !strings.Contains(f.text, fmt.Sprint(code)) {
			t.Errorf("tcp, %d: %v", code, err)
		}
	}
}
