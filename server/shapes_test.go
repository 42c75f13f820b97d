package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/grpc/pb"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// connect registers a container's model over a socket.
func connect(t *testing.T, s *Server, m containertest.Model) *containertest.Container {
	t.Helper()
	m.Version = "1"
	c, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(), m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, m.Name, "1") })
	return c
}

func ints(shape tensor.Shape, values ...int64) tensor.Tensor {
	t, err := tensor.FromSlice(shape, values)
	if err != nil {
		panic(err)
	}
	t.Data = append([]byte{}, t.Data...) // never nil, which would mean missing data
	return t
}

// TestNotBatchedThroughEveryDoor: each request is executed separately, in the shape that was sent,
// of any size including 0, whatever other requests there are.
func TestNotBatchedThroughEveryDoor(t *testing.T) {
	s := start(t, nil)
	all := ways(t, s)
	for name, shapes := range map[string][]tensor.Shape{
		"[-1]":     {{5}, {1}, {0}},
		"[-1, -1]": {{2, 3}, {1, 4}, {0, 4}, {3, 0}},
		"[2, -1]":  {{2, 3}, {2, 0}},
	} {
		var declared tensor.Shape
		if err := json.Unmarshal([]byte(name), &declared); err != nil {
			t.Fatal(err)
		}
		model := "m" + strings.NewReplacer("[", "", "]", "", ", ", "x").Replace(name)
		x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: declared}}
		c := connect(t, s, containertest.Model{Name: model, Batched: new(false), Inputs: x, Outputs: x})
		asked := 0
		for _, shape := range shapes {
			n, _ := shape.Elements()
			q := ints(shape, make([]int64, n)...)
			for i := range q.Data {
				q.Data[i] = byte(i * 7)
			}
			sameEverywhere(t, all, model, q, "default", false)
			asked += len(all)
		}
		batches := c.Batches()
		if len(batches) != asked {
			t.Errorf("%s: %d requests were %d executions", name, asked, len(batches))
		}
		for _, b := range batches {
			if got := b.Inputs[0].Shape; b.Rows != 1 || !slices.ContainsFunc(shapes, got.Equal) {
				t.Errorf("%s: the container saw %d rows of shape %s", name, b.Rows, got)
			}
		}
	}
}

// A caller sends requests to a model with several inputs and outputs over one wire. It returns
// shapes and values as texts, by output.
type caller struct {
	name string
	ask  func(ctx context.Context, model string, inputs ...tensor.Tensor) (map[string]string, error)
}

func render(t tensor.Tensor) string {
	v, err := tensor.Values[int64](t)
	return fmt.Sprint(t.Shape, v, map[bool]any{false: "", true: err}[err != nil])
}

func callers(t *testing.T, s *Server) []caller {
	web, rpc, tcp := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]), newTCP(t, s.Addrs().TCP[0])
	overHTTP := func(binary bool) func(context.Context, string, ...tensor.Tensor) (map[string]string, error) {
		return func(ctx context.Context, model string, inputs ...tensor.Tensor) (map[string]string, error) {
			list, data := []httpTensor{}, []byte(nil)
			for _, x := range inputs {
				in := httpTensor{Name: x.Name, Datatype: "INT64", Shape: append([]int{}, x.Shape...)}
				if binary {
					in.Parameters = map[string]int{"binary_data_size": len(x.Data)}
					data = append(append([]byte{}, data...), x.Data...)
				} else {
					in.Data = jsonValues(x)
				}
				list = append(list, in)
			}
			head, err := json.Marshal(map[string]any{"parameters": map[string]any{"binary_data_output": binary}, "inputs": list})
			if err != nil {
				return nil, err
			}
			text, rest, err := web.post(ctx, model, head, data)
			if err != nil {
				return nil, err
			}
			var answer struct{ Outputs []httpTensor }
			d := json.NewDecoder(bytes.NewReader(text))
			d.UseNumber()
			if err := d.Decode(&answer); err != nil {
				return nil, err
			}
			outputs := map[string]string{}
			for _, o := range answer.Outputs {
				n := o.Parameters["binary_data_size"]
				data := slices.Clone(rest[:n])
				if rest = rest[n:]; !binary {
					if data, err = fromDecimals(tensor.Int64, o.Data); err != nil {
						return nil, err
					}
				}
				outputs[o.Name] = render(tensor.Tensor{DType: tensor.Int64, Shape: o.Shape, Data: data})
			}
			return outputs, nil
		}
	}
	return []caller{
		{"tcp", func(ctx context.Context, model string, inputs ...tensor.Tensor) (map[string]string, error) {
			names := []string{}
			for _, x := range inputs {
				names = append(names, x.Name)
			}
			metadata, err := json.Marshal(map[string]any{"__tensors__": names})
			if err != nil {
				return nil, err
			}
			a, err := tcp.client.Do(ctx, &shiva.Message{Namespace: model, Metadata: metadata, Tensors: inputs})
			if err != nil {
				return nil, shivaFault(err)
			}
			defer a.Release()
			var answer struct {
				Names []string `json:"__tensors__"`
			}
			if err := json.Unmarshal(a.Metadata, &answer); err != nil || len(answer.Names) != len(a.Tensors) {
				return nil, fmt.Errorf("%d tensors and %s: %w", len(a.Tensors), a.Metadata, err)
			}
			outputs := map[string]string{}
			for i, o := range a.Tensors {
				outputs[answer.Names[i]] = render(o)
			}
			return outputs, nil
		}},
		{"rest json", overHTTP(false)},
		{"rest binary", overHTTP(true)},
		{"grpc", func(ctx context.Context, model string, inputs ...tensor.Tensor) (map[string]string, error) {
			q := &pb.ModelInferRequest{ModelName: model}
			for _, x := range inputs {
				one := grpcQuestion(model, x, 0).Inputs[0]
				one.Name = x.Name
				q.Inputs, q.RawInputContents = append(q.Inputs, one), append(q.RawInputContents, x.Data)
			}
			a, err := rpc.client.ModelInfer(ctx, q)
			if err != nil {
				return nil, grpcFault(err)
			}
			outputs := map[string]string{}
			for i, o := range a.Outputs {
				y, err := grpcTensor(o, a.RawOutputContents[i])
				if err != nil {
					return nil, err
				}
				outputs[o.Name] = render(y)
			}
			return outputs, nil
		}},
	}
}

func named(name string, t tensor.Tensor) tensor.Tensor {
	t.Name = name
	return t
}

// detect answers with as many boxes as the first value of a row, each with that value; with a
// threshold, only those from n/2 on.
func detect(row []int64) (boxes []int64) {
	for range row[0] {
		boxes = append(boxes, row[0], row[1])
	}
	return boxes
}

// TestOptionalInputs: an optional input may be left out on every door, and an empty one is not the
// same as none.
func TestOptionalInputs(t *testing.T) {
	s := start(t, nil)
	connect(t, s, containertest.Model{
		Name: "detector", Batched: new(false),
		Inputs: []tensor.Spec{
			{Name: "image", DType: tensor.Int64, Shape: tensor.Shape{2}},
			{Name: "mask", DType: tensor.Int64, Shape: tensor.Shape{-1}, Optional: true},
		},
		Outputs: []tensor.Spec{{Name: "boxes", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}},
			{Name: "masked", DType: tensor.Int64, Shape: tensor.Shape{}}},
		Answer: func(b *containertest.Batch) containertest.Reply {
			row, _ := tensor.Values[int64](b.Inputs[0])
			boxes, masked := detect(row), int64(-1)
			if len(b.Inputs) > 1 {
				masked = int64(b.Inputs[1].Shape[0])
			}
			return containertest.Reply{Outputs: []tensor.Tensor{ints(tensor.Shape{len(boxes) / 2, 2}, boxes...),
				ints(tensor.Shape{}, masked)}}
		},
	})
	image := func(n int64) tensor.Tensor { return named("image", ints(tensor.Shape{2}, n, 7)) }
	mask := func(n int) tensor.Tensor { return named("mask", ints(tensor.Shape{n}, make([]int64, n)...)) }
	for _, c := range callers(t, s) {
		for _, q := range []struct {
			inputs        []tensor.Tensor
			boxes, masked string
		}{
			{[]tensor.Tensor{image(2)}, "[2, 2] [2 7 2 7]", "[] [-1]"},
			{[]tensor.Tensor{image(0)}, "[0, 2] []", "[] [-1]"},
			{[]tensor.Tensor{image(1), mask(3)}, "[1, 2] [1 7]", "[] [3]"},
			{[]tensor.Tensor{mask(0), image(1)}, "[1, 2] [1 7]", "[] [0]"},
		} {
			got, err := c.ask(t.Context(), "detector", q.inputs...)
			if err != nil || strings.TrimSpace(got["boxes"]) != q.boxes ||
				strings.TrimSpace(got["masked"]) != q.masked {
				t.Errorf("%s: %d inputs: %q, %v, expected %s and %s", c.name, len(q.inputs), got, err, q.boxes,
					q.masked)
			}
		}
		if _, err := c.ask(t.Context(), "detector", mask(1)); err == nil || !strings.Contains(err.(*refusal).text, `input "image" is missing`) {
			t.Errorf("%s: without the image: %v", c.name, err)
		}
	}
	// Tensors without names are matched by position, and the last ones may be missing.
	a, err := newTCP(t, s.Addrs().TCP[0]).client.Do(t.Context(),
		&shiva.Message{Namespace: "detector", Tensors: []tensor.Tensor{ints(tensor.Shape{2}, 1, 7)}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	if masked, err := tensor.Values[int64](a.Tensors[1]); err != nil || len(masked) != 1 || masked[0] != -1 {
		t.Errorf("by position: %v, %v", a.Tensors, err)
	}
}

// ragged returns a batched detector: each row has as many boxes as it asks for.
func ragged(name string) containertest.Model {
	return containertest.Model{
		Name: name, Batched: new(true),
		Inputs: []tensor.Spec{{Name: "image", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{
			{Name: "count", DType: tensor.Int64, Shape: tensor.Shape{-1}},
			{Name: "boxes", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}, Ragged: "count"},
		},
		Answer: func(b *containertest.Batch) containertest.Reply {
			rows, _ := tensor.Values[int64](b.Inputs[0])
			var boxes, counts []int64
			for ; len(rows) > 0; rows = rows[2:] {
				one := detect(rows)
				boxes, counts = append(boxes, one...), append(counts, int64(len(one)/2))
			}
			return containertest.Reply{Outputs: []tensor.Tensor{ints(tensor.Shape{len(counts)}, counts...),
				ints(tensor.Shape{len(boxes) / 2, 2}, boxes...)}}
		},
	}
}

// TestRaggedOutputs: rows of several requests are computed in one batch, and rows of one request in
// several batches; each request gets the values of its rows, one after the other, with the counts.
func TestRaggedOutputs(t *testing.T) {
	for name, change := range map[string]func(*config.Policy){
		"together": func(p *config.Policy) { p.Delay, p.Objective = time.Second, 2*time.Second }, // all have come by then
		"split":    func(p *config.Policy) { p.MaxBatch = 2 },
		"padded":   func(p *config.Policy) { p.Strategy, p.MaxBatch, p.Pad = "static", 4, true },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, func(c *config.Config) { change(&c.Defaults) })
			c := connect(t, s, ragged("detector"))
			var asked sync.WaitGroup
			for _, c := range callers(t, s) {
				for _, q := range []struct {
					image        tensor.Tensor
					count, boxes string
				}{
					{ints(tensor.Shape{2}, 2, 7), "[] [2]", "[2, 2] [2 7 2 7]"},
					{ints(tensor.Shape{2}, 0, 7), "[] [0]", "[0, 2] []"},
					{ints(tensor.Shape{1, 2}, 1, 7), "[1] [1]", "[1, 2] [1 7]"},
					{ints(tensor.Shape{3, 2}, 2, 7, 0, 8, 1, 9), "[3] [2 0 1]", "[3, 2] [2 7 2 7 1 9]"},
					{ints(tensor.Shape{5, 2}, 0, 7, 0, 8, 0, 9, 1, 5, 2, 6), "[5] [0 0 0 1 2]", "[3, 2] [1 5 2 6 2 6]"},
				} {
					asked.Go(func() {
						got, err := c.ask(t.Context(), "detector", named("image", q.image))
						if err != nil || strings.TrimSpace(got["count"]) != q.count ||
							strings.TrimSpace(got["boxes"]) != q.boxes {
							t.Errorf("%s: image %s: %q, %v, expected %s and %s", c.name, q.image.Shape, got, err,
								q.count, q.boxes)
						}
					})
				}
			}
			asked.Wait()
			if name == "together" && !slices.ContainsFunc(c.Batches(), func(b *containertest.Batch) bool {
				return len(b.Requests) > 1
			}) {
				t.Error("no batch has rows of several requests")
			}
		})
	}
}

// TestRaggedAnswers: counts that do not match the values fail the batch, with an error that says
// so.
func TestRaggedAnswers(t *testing.T) {
	s := start(t, nil)
	var count atomic.Int64
	m := ragged("detector")
	m.Answer = func(*containertest.Batch) containertest.Reply {
		return containertest.Reply{Outputs: []tensor.Tensor{ints(tensor.Shape{1}, count.Load()),
			ints(tensor.Shape{3, 2}, 1, 2, 3, 4, 5, 6)}}
	}
	connect(t, s, m)
	for _, c := range []struct {
		count int64
		words string
	}{
		{2, "count adds up to 2 values for 1 row, but it has 3"},
		{4, "count is 4 for row 0, but only 3 of its 3 values are left"},
		{-1, "count is -1 for row 0"},
		{1<<63 - 1, "count is 9223372036854775807 for row 0"},
	} {
		count.Store(c.count)
		_, err := callers(t, s)[0].ask(t.Context(), "detector", named("image", ints(tensor.Shape{1, 2}, 1, 2)))
		if f, ok := err.(*refusal); !ok || f.kind != "ContainerFailed" || !strings.Contains(f.text, c.words) {
			t.Errorf("count %d: %v, expected %q", c.count, err, c.words)
		}
	}
}

// TestFreeSizesThatDoNotGoTogether: rows of one request that are answered with different sizes
// cannot be joined. The log at registration and the error tell what to do.
func TestFreeSizesThatDoNotGoTogether(t *testing.T) {
	s := start(t, func(c *config.Config) { c.Defaults.MaxBatch = 1 })
	calls := 0
	connect(t, s, containertest.Model{
		Name: "loose", Inputs: []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1, 2}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Int64, Shape: tensor.Shape{-1, -1}}},
		Answer: func(*containertest.Batch) containertest.Reply {
			calls++
			return containertest.Reply{Outputs: []tensor.Tensor{ints(tensor.Shape{1, calls}, make([]int64, calls)...)}}
		},
	})
	_, err := callers(t, s)[0].ask(t.Context(), "loose", named("x", ints(tensor.Shape{2, 2}, 1, 2, 3, 4)))
	for _, words := range []string{"cannot be joined", "ragged", "pad it and return a count", "batched = false"} {
		if f, ok := err.(*refusal); !ok || !strings.Contains(f.text, words) {
			t.Errorf("%v does not say %q", err, words)
		}
	}
}

// TestWhatIsSaidOfShapes: every description of a model has whether its first dimension counts rows,
// and which tensors are optional or ragged.
func TestWhatIsSaidOfShapes(t *testing.T) {
	s := start(t, nil)
	connect(t, s, ragged("rows"))
	in := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1}},
		{Name: "m", DType: tensor.Int64, Shape: tensor.Shape{-1}, Optional: true}}
	connect(t, s, containertest.Model{Name: "clip", Batched: new(false), Inputs: in, Outputs: in[:1]})
	web, rpc, tcp := newHTTP(t, s.Addrs().REST[0]), newGRPC(t, s.Addrs().GRPC[0]), newTCP(t, s.Addrs().TCP[0])
	get := func(path string) string {
		q, err := http.NewRequestWithContext(t.Context(), "GET", web.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _, err := web.do(q)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ask := func(route string) string {
		a, err := tcp.client.Do(t.Context(), &shiva.Message{Namespace: route})
		if err != nil {
			t.Fatal(err)
		}
		defer a.Release()
		return string(a.Metadata)
	}
	const clip = `"batched":false,"inputs":[{"name":"x","datatype":"INT64","shape":[-1]},{"name":"m","datatype":"INT64","shape":[-1],"optional":true}]`
	const rows = `"outputs":[{"name":"count","datatype":"INT64","shape":[-1]},{"name":"boxes","datatype":"INT64","shape":[-1,2],"ragged":"count"}]`
	for _, path := range []string{"/v2/models/clip", "/v2/models/rows"} {
		want := map[bool]string{true: clip, false: rows}[strings.HasSuffix(path, "clip")]
		for how, text := range map[string]string{"rest": get(path), "tcp": ask(path[1:])} {
			if !strings.Contains(text, want) {
				t.Errorf("%s %s: %s, expected %s in it", how, path, text, want)
			}
			if strings.HasSuffix(path, "rows") && strings.Contains(text, `"batched"`) {
				t.Errorf("%s %s: %s", how, path, text)
			}
		}
	}
	for path, want := range map[string]string{
		"/v2/models/clip/config": `"max_batch_size":0,"input":[{"name":"x","data_type":"TYPE_INT64","dims":[-1],"format":"FORMAT_NONE"},{"name":"m","data_type":"TYPE_INT64","dims":[-1],"format":"FORMAT_NONE","optional":true}]`,
		"/v2/models/rows/config": `"output":[{"name":"count","data_type":"TYPE_INT64","dims":[]},{"name":"boxes","data_type":"TYPE_INT64","dims":[-1,2]}]`,
	} {
		if text := get(path); !strings.Contains(text, want) {
			t.Errorf("%s: %s, expected %s in it", path, text, want)
		}
	}
	c, err := rpc.client.ModelConfig(t.Context(), &pb.ModelConfigRequest{Name: "clip"})
	if err != nil || c.Config.MaxBatchSize != 0 || c.Config.GetDynamicBatching() != nil || c.Config.Input[0].Optional ||
		!c.Config.Input[1].Optional || len(c.Config.Input[0].Dims) != 1 {
		t.Errorf("grpc: %v, %v", c, err)
	}
	for _, m := range s.report.Models() {
		if m.Batched != (m.Name != "clip") {
			t.Errorf("status: %s batched: %t", m.Name, m.Batched)
		}
	}
	if e := s.report.Explain("clip"); !strings.Contains(strings.Join(e[0].Sentences, " "), "not batched") {
		t.Errorf("explain: %q", e)
	}
}

// TestBatchedInTheConfiguration: the setting applies to containers that cannot declare it, and to
// no others.
func TestBatchedInTheConfiguration(t *testing.T) {
	s := start(t, func(c *config.Config) {
		whole := config.Model{Policy: c.Defaults}
		whole.Batched = false
		c.Models = map[string]config.Model{"old": whole, "hand": whole, "sdk": whole}
	})
	x := []tensor.Spec{{Name: "x", DType: tensor.Int64, Shape: tensor.Shape{-1}}}

	// RPC v4 by hand, from before it had the declaration.
	c := connect(t, s, containertest.Model{Name: "hand", Inputs: x, Outputs: x})
	sameEverywhere(t, ways(t, s), "hand", ints(tensor.Shape{3}, 1, 2, 3), "default", false)
	for _, b := range c.Batches() {
		if b.Rows != 1 || !b.Inputs[0].Shape.Equal(tensor.Shape{3}) {
			t.Errorf("the container saw %d rows of shape %s", b.Rows, b.Inputs[0].Shape)
		}
	}
	_, err := containertest.Dial(t.Context(), s.Addrs().Containers[0].String(),
		containertest.Model{Name: "sdk", Version: "1", Batched: new(true), Inputs: x, Outputs: x})
	if err == nil || !strings.Contains(err.Error(), "declares batched = true, the server's configuration sets batched = false") {
		t.Errorf("a container that says otherwise: %v", err)
	}

	// RPC v3: a matrix is one row.
	raw, err := net.Dial("tcp", s.Addrs().Containers[0].String())
	if err != nil {
		t.Fatal(err)
	}
	p, err := containertest.NewPeer(raw)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	number := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	if err := p.Send(nil, number(0), []byte("old"), []byte("1"), []byte("1"), number(3)); err != nil {
		t.Fatal(err)
	}
	budgettest.Until(t, "the container to serve", func() bool { return serves(s, "old", "1") })
	target, err := s.gate.Target("old", "1")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := target.Spec.String(),
		"inputs input int32 [-1]; outputs output bytes []; rows of any shape; not batched"; got != want {
		t.Errorf("it is %s, expected %s", got, want)
	}
	var call gate.Call
	matrix := tensor.Tensor{DType: tensor.Int32, Shape: tensor.Shape{2, 3}, Data: make([]byte, 24)}
	if err := s.gate.Open(&call,
		&gate.Request{Model: "old", Inputs: []tensor.Tensor{matrix}, Arrived: time.Now()}); err != nil ||
		call.Rows != 1 || !call.Inputs[0].Shape.Equal(tensor.Shape{1, 6}) {
		t.Errorf("a matrix is %d rows of %v, %v", call.Rows, call.Inputs, err)
	}
	call.Close()
	if err := s.gate.Open(&call,
		&gate.Request{Model: "old", Inputs: []tensor.Tensor{matrix}, Values: parameter.Values{Batch: true},
			Arrived: time.Now()}); err == nil || !strings.Contains(err.Error(), "one row per request") {
		t.Errorf("several rows: %v", err)
	}
}

// TestApplicationsOfAnyShape: an application has the inputs and outputs of its model; policies that
// would combine ragged outputs of several models report why they cannot.
func TestApplicationsOfAnyShape(t *testing.T) {
	s := start(t, nil)
	connect(t, s, ragged("a"))
	connect(t, s, ragged("b"))
	for _, d := range []string{`{"name":"one","models":["a"],"policy":"single"}`, `{"name":"both","models":["a","b"],"policy":"ensemble"}`} {
		var definition apps.Definition
		if err := json.Unmarshal([]byte(d), &definition); err != nil {
			t.Fatal(err)
		}
		if _, err := registry(t, s).Create(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
	}
	images := named("image", ints(tensor.Shape{2, 2}, 2, 7, 1, 8))
	for _, c := range callers(t, s) {
		got, err := c.ask(t.Context(), "one", images)
		if err != nil || strings.TrimSpace(got["boxes"]) != "[3, 2] [2 7 2 7 1 8]" {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
		if _, err := c.ask(t.Context(), "both", images); err == nil || !strings.Contains(err.(*refusal).text, "ragged output") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
