package containers_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shivad/shivad/containers"
	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestV4Echo: many requests of various sizes at once, through batches, and each gets its own
// rows back.
func TestV4Echo(t *testing.T) {
	r := newRig(t, containers.Config{})
	c := r.join(t, echo(func(b *containertest.Batch) containertest.Reply {
		return containertest.Reply{Outputs: b.Inputs, Delay: time.Millisecond}
	}))
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			in := make([]float32, 4*(1+i%5))
			for k := range in {
				in[k] = float32(i*100 + k)
			}
			x := floats(in...)
			out, err := r.infer(echoID, x)
			if err != nil {
				t.Error(err)
				return
			}
			if !bytes.Equal(out[0].Data, x.Data) || out[0].Name != "y" || !out[0].Shape.Equal(x.Shape) {
				t.Errorf("request %d got %q %s % x", i, out[0].Name, out[0].Shape, out[0].Data)
			}
			out[0].Release()
		})
	}
	wg.Wait()
	largest := 0
	for _, b := range c.Batches() {
		largest = max(largest, b.Rows)
	}
	if largest < 2 {
		t.Error("no batch had more than one row")
	}
	if i := r.Sessions()[0]; i.RPC != "v4" || i.Model != echoID || i.Rows != 64*3-2 || i.InFlight != 0 || i.State != "serving" {
		t.Errorf("session %+v", i)
	}
}

// TestV4Prepared: what a container says of its preparation reaches the scheduler.
func TestV4Prepared(t *testing.T) {
	r := newRig(t, containers.Config{})
	r.join(t, echo(func(b *containertest.Batch) containertest.Reply {
		f := containertest.Result(b.ID, nil, containertest.Reply{Outputs: b.Inputs})
		f[2] = append(f[2][:len(f[2])-1], `,"prepared_ms":20.5}`...)
		f[2] = bytes.Replace(f[2], []byte(`"x"`), []byte(`"y"`), 1)
		return containertest.Reply{Frames: f, Delay: 100 * time.Millisecond}
	}))
	for range 2 {
		out, err := r.infer(echoID, floats(1, 2, 3, 4))
		if err != nil {
			t.Fatal(err)
		}
		out[0].Release()
	}
	m, _ := r.sched.Model(echoID)
	if got := m.Stats().Replicas[0].Preparation; got != 20500*time.Microsecond {
		t.Errorf("a row is prepared in %v, want 20.5ms", got)
	}
}

// TestV4Header: the JSON frame of a batch.
func TestV4Header(t *testing.T) {
	r := newRig(t, containers.Config{})
	c := r.join(t, echo(nil))
	parent := scheduler.Parent{Trace: [16]byte{0x0a, 15: 1}, Span: [8]byte{7: 0xff}}
	for i, tt := range []struct {
		q    scheduler.Request
		want string
	}{
		{scheduler.Request{Inputs: []tensor.Tensor{floats(1, 2, 3, 4)}}, `{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,4]}],"timeout_ms":T}`},
		{scheduler.Request{Inputs: []tensor.Tensor{floats(1, 2, 3, 4, 5, 6, 7, 8)}, Priority: 3, Parameters: []byte(`{"a":[1]}`)},
			`{"rows":2,"inputs":[{"name":"x","datatype":"FP32","shape":[2,4]}],"timeout_ms":T,"requests":[2],"parameters":[{"a":[1]}],"priority":[3]}`},
		{scheduler.Request{Inputs: []tensor.Tensor{floats(1, 2, 3, 4)}, Rare: &scheduler.Rare{Metadata: []byte(`{"id":1}`)}},
			`{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,4]}],"timeout_ms":T,"metadata":[{"id":1}]}`},
		{scheduler.Request{Inputs: []tensor.Tensor{floats(1, 2, 3, 4)}, Trace: &scheduler.Trace{Parent: parent}},
			`{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,4]}],"timeout_ms":T,"traces":["00-0a000000000000000000000000000001-00000000000000ff-01"]}`},
		{scheduler.Request{Inputs: []tensor.Tensor{floats(1, 2, 3, 4)}, Trace: &scheduler.Trace{Parent: parent, State: `a="b`}},
			`{"rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1,4]}],"timeout_ms":T,"traces":["00-0a000000000000000000000000000001-00000000000000ff-01"],"trace_states":["a=\"b"]}`},
	} {
		out, err := r.ask(&tt.q, echoID)
		if err != nil {
			t.Fatal(err)
		}
		out[0].Release()
		b := c.Batches()[i]
		if b.Timeout <= 0 || b.Timeout > 30*time.Second {
			t.Errorf("timeout %v", b.Timeout)
		}
		if got := timeoutText.ReplaceAllString(b.Header, `"timeout_ms":T`); got != tt.want {
			t.Errorf("header %s\nexpected %s", got, tt.want)
		}
	}
}

var timeoutText = regexp.MustCompile(`"timeout_ms":[0-9]+(\.[0-9]+)?`)

// TestV4Dtypes carries every datatype both ways, BYTES too.
func TestV4Dtypes(t *testing.T) {
	r := newRig(t, containers.Config{})
	for d := range tensor.DType(64) {
		if !d.Valid() {
			continue
		}
		name := strings.ToLower(d.V2())
		spec := []tensor.Spec{{Name: "x", DType: d, Shape: tensor.Shape{-1, 2}}}
		r.join(t, containertest.Model{Name: name, Version: "1", Inputs: spec, Outputs: spec})
		data := bytes.Repeat([]byte{1}, 3*2*d.Size())
		if d == tensor.Bytes {
			for i := range 6 {
				data = tensor.AppendElem(data, strings.Repeat("é", i))
			}
		}
		in := tensor.Tensor{Name: "x", DType: d, Shape: tensor.Shape{3, 2}, Data: data}
		out, err := r.infer(scheduler.ModelID{Name: name, Version: "1"}, in)
		if err != nil {
			t.Fatalf("%s: %v", d, err)
		}
		if out[0].DType != d || !bytes.Equal(out[0].Data, data) {
			t.Errorf("%s came back as %s % x", d, out[0].DType, out[0].Data)
		}
		out[0].Release()
	}
}

// TestV4Unbatched: a model that is not batched receives its declared shape and answers in it.
func TestV4Unbatched(t *testing.T) {
	r := newRig(t, containers.Config{})
	c := r.join(t, containertest.Model{
		Name: "echo", Version: "1",
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{4}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{4}}},
	})
	if err := r.echoes(echoID); err != nil {
		t.Fatal(err)
	}
	if b := c.Batches()[0]; !b.Inputs[0].Shape.Equal(tensor.Shape{4}) {
		t.Errorf("the container saw %s", b.Inputs[0].Shape)
	}
}

// TestV4Errors: a wrong answer fails its batch with a reason, and the session continues.
func TestV4Errors(t *testing.T) {
	y := func(rows ...float32) []tensor.Tensor { return []tensor.Tensor{floats(rows...)} }
	result := func(b *containertest.Batch, header string, frames ...string) containertest.Reply {
		f := containertest.Result(b.ID, nil, containertest.Reply{})[:2]
		f = append(f, []byte(header))
		for _, s := range frames {
			f = append(f, []byte(s))
		}
		return containertest.Reply{Frames: f}
	}
	const data = "0123456789abcdef"
	tests := []struct {
		name  string
		reply func(b *containertest.Batch) containertest.Reply
		want  string
	}{
		{"error", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Error: "out of \"luck\""}
		}, `out of "luck"`},
		{"row error", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Rows: map[int]string{0: "too dark"}}
		}, "too dark"},
		{"row error outside", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: b.Inputs, Rows: map[int]string{1: "?"}}
		}, "row 1 in a batch of 1 row"},
		{"too many rows", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: y(1, 2, 3, 4, 5, 6, 7, 8)}
		}, "[2, 4]"},
		{"no outputs", func(b *containertest.Batch) containertest.Reply { return containertest.Reply{} }, "answered with 0"},
		{"two outputs", func(b *containertest.Batch) containertest.Reply {
			return containertest.Reply{Outputs: append(y(1, 2, 3, 4), b.Inputs...)}
		}, "answered with 2"},
		{"wrong name", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"z","datatype":"FP32","shape":[1,4]}]}`, data)
		}, `output "y" is missing`},
		{"wrong dtype", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"INT32","shape":[1,4]}]}`, data)
		}, "int32"},
		{"unknown dtype", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP33","shape":[1,4]}]}`, data)
		}, "FP33"},
		{"wrong shape", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,2,2]}]}`, data)
		}, "[1, 2, 2]"},
		{"NaN in the shape", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,NaN]}]}`, data)
		}, "expected a whole number"},
		{"negative shape", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,-4]}]}`, data)
		}, "[1, -4]"},
		{"overflowing shape", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,4611686018427387904]}]}`, data)
		}, "got [1, 4611686018427387904]"},
		{"short data", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,4]}]}`, data[:15])
		}, "15"},
		{"missing frame", func(b *containertest.Batch) containertest.Reply {
			return result(b, `{"outputs":[{"name":"y","datatype":"FP32","shape":[1,4]}]}`)
		}, "sent 0 frames"},
		{"no JSON", func(b *containertest.Batch) containertest.Reply { return result(b, "\x00\xff", data) }, "expected an object"},
		{"no header", func(b *containertest.Batch) containertest.Reply { return result(b, "", data) }, "expected an object"},
	}
	r := newRig(t, containers.Config{})
	var reply func(*containertest.Batch) containertest.Reply
	r.join(t, echo(func(b *containertest.Batch) containertest.Reply { return reply(b) }))
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reply = tt.reply
			out, err := r.infer(echoID, floats(1, 2, 3, 4))
			if !errors.Is(err, scheduler.ErrContainerFailed) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v %v, expected ErrContainerFailed with %q", out, err, tt.want)
			}
			reply = func(b *containertest.Batch) containertest.Reply { return containertest.Reply{Outputs: b.Inputs} }
			if err := r.echoes(echoID); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	// A failed row is not a failure of its batch.
	if i := r.Sessions()[0]; i.Failures != uint64(len(tests)-1) || i.LastFailure == "" {
		t.Errorf("session counts %d failures, the last %q", i.Failures, i.LastFailure)
	}
}

// TestV4Strays: answers to batches that are not in flight are dropped and counted; the right one
// still counts.
func TestV4Strays(t *testing.T) {
	r := newRig(t, containers.Config{})
	r.join(t, echo(func(b *containertest.Batch) containertest.Reply {
		return containertest.Reply{Outputs: b.Inputs, Twice: true}
	}))
	for range 5 {
		if err := r.echoes(echoID); err != nil {
			t.Fatal(err)
		}
	}
	budgettest.Until(t, "strays to be counted", func() bool { return r.Sessions()[0].Strays == 5 })
	if n := strings.Count(r.log.String(), "not in flight"); n != 1 {
		t.Errorf("logged %d times, expected once", n)
	}
}

// helloWith is a valid hello with some members changed.
func helloWith(t *testing.T, change string) string {
	t.Helper()
	base := map[string]any{"protocol": 4, "model": "m", "version": "1",
		"inputs":  []any{map[string]any{"name": "x", "datatype": "FP32", "shape": []int{-1, 4}}},
		"outputs": []any{map[string]any{"name": "y", "datatype": "FP32", "shape": []int{-1}}}}
	var with map[string]any
	if err := json.Unmarshal([]byte(change), &with); err != nil {
		t.Fatal(err)
	}
	for k, v := range with {
		base[k] = v
	}
	text, _ := json.Marshal(base)
	return string(text)
}

// TestV4Registration: each invalid registration is refused with a reason, which is sent and
// logged.
func TestV4Registration(t *testing.T) {
	r := newRig(t, containers.Config{})
	hello := func(change string) string { return helloWith(t, change) }
	input := func(name, datatype, shape string) string {
		return hello(fmt.Sprintf(`{"inputs":[{"name":%s,"datatype":%s,"shape":%s}]}`, name, datatype, shape))
	}
	output := func(datatype, shape string) string {
		return hello(fmt.Sprintf(`{"outputs":[{"name":"y","datatype":%s,"shape":%s}]}`, datatype, shape))
	}
	tests := []struct{ name, hello, want string }{
		{"protocol", hello(`{"protocol":5}`), "protocol 5, this server speaks 4"},
		{"empty", "", "not the JSON expected"},
		{"array", "[]", "not the JSON expected"},
		{"UTF-8", "\xff", "not UTF-8"},
		{"no model", hello(`{"model":""}`), "model is empty"},
		{"slash", hello(`{"model":"a/b"}`), `"a/b" has a '/'`},
		{"bang", hello(`{"model":"!error"}`), "begins with '!'"},
		{"stats", hello(`{"model":"stats"}`), "reserved"},
		{"v2", hello(`{"model":"v2"}`), "reserved"},
		{"update", hello(`{"version":"update"}`), "reserved"},
		{"version slash", hello(`{"version":"1/2"}`), "has a '/'"},
		{"control", hello(`{"model":"a\u001b[31m"}`), "unprintable"},
		{"newline", hello(`{"version":"1\n2"}`), "unprintable"},
		{"long name", hello(`{"model":"` + strings.Repeat("x", 129) + `"}`), "129 bytes, limit 128"},
		{"instance", hello(`{"instance":"\u0007"}`), "unprintable"},
		{"1 MB of metadata", hello(`{"parameters":{"x":"` + strings.Repeat("x", 1<<20) + `"}}`), "limit 262144"},
		{"parameters", hello(`{"parameters":{"x":"` + strings.Repeat("x", 70_000) + `"}}`), "limit 65536"},
		{"parameters type", hello(`{"parameters":[1]}`), "expected a JSON object"},
		{"no inputs", hello(`{"inputs":null}`), "no inputs declared; an empty list declares a model without any"},
		{"no outputs", hello(`{"outputs":null}`), "0 outputs declared"},
		{"many inputs", hello(`{"inputs":[` + strings.Repeat(`{"name":"x","datatype":"FP32","shape":[-1]},`, 255) + `{}]}`),
			"256 inputs or outputs declared, expected at most 255"},
		{"nameless", input(`""`, `"FP32"`, `[-1]`), "no name"},
		{"twice", hello(`{"inputs":[{"name":"x","datatype":"FP32","shape":[-1]},{"name":"x","datatype":"FP32","shape":[-1]}]}`),
			"declared twice"},
		{"datatype", input(`"x"`, `"float32"`, `[-1]`), `"float32"`},
		{"no shape", input(`"x"`, `"FP32"`, `null`), "no shape"},
		{"shape", input(`"x"`, `"FP32"`, `[-1,-2]`), "[-1 -2]"},
		{"zero", input(`"x"`, `"FP32"`, `[-1,0]`), "[-1 0]"},
		{"fraction", input(`"x"`, `"FP32"`, `[-1,1.5]`), "not the JSON expected"},
		{"rank", input(`"x"`, `"FP32"`, "["+strings.Repeat("-1,", 64)+"1]"), "65 dimensions"},
		{"huge row", input(`"x"`, `"FP32"`, `[-1,100000000]`), "larger than the limit"},
		{"overflow", input(`"x"`, `"FP32"`, `[-1,4611686018427387904,4]`), "larger than the limit"},
		{"mixed batch dimension", input(`"x"`, `"FP32"`, `[4]`), "could mean two things: declare batched = false"},
		{"batched, mixed", hello(`{"batched":true,"inputs":[{"name":"x","datatype":"FP32","shape":[4]}]}`), "it declares batched = true, but 1 of its 2"},
		{"optional rows", hello(`{"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"optional":true}]}`), "needs batched = false"},
		{"optional output", hello(`{"batched":false,"outputs":[{"name":"y","datatype":"FP32","shape":[-1],"optional":true}]}`),
			"only inputs can be"},
		{"ragged input", hello(`{"inputs":[{"name":"x","datatype":"FP32","shape":[-1],"ragged":"x"}]}`), "only outputs can be"},
		{"ragged by nothing", hello(`{"outputs":[{"name":"y","datatype":"FP32","shape":[-1],"ragged":"n"}]}`), `ragged with counts in "n", which must be another output`},
		{"ragged by itself", hello(`{"outputs":[{"name":"y","datatype":"INT32","shape":[-1],"ragged":"y"}]}`), `ragged with counts in "y", which must be another output`},
		{"ragged by floats", hello(`{"outputs":[{"name":"y","datatype":"FP32","shape":[-1],"ragged":"n"},{"name":"n","datatype":"FP32","shape":[-1]}]}`),
			"INT32 or INT64"},
		{"ragged and open", hello(`{"outputs":[{"name":"y","datatype":"FP32","shape":[-1,-1],"ragged":"n"},{"name":"n","datatype":"INT32","shape":[-1]}]}`),
			"all dimensions but the first"},
		{"ragged and not batched", hello(`{"batched":false,"outputs":[{"name":"y","datatype":"FP32","shape":[-1],"ragged":"n"},{"name":"n","datatype":"INT32","shape":[-1]}]}`),
			"the model is not batched"},
		{"format", input(`"x"`, `"FP32"`, `[-1,2,2,3],"format":"NHWC"`), `input "x" has format "NHWC", expected FORMAT_NHWC or FORMAT_NCHW`},
		{"format of no image", input(`"x"`, `"FP32"`, `[-1,2,3],"format":"FORMAT_NHWC"`), "expected 3 dimensions beside that of rows, got 2"},
		{"format of an output", output(`"FP32"`, `[-1,2,2,3],"format":"FORMAT_NHWC"`), "which only inputs can have"},
		{"image of floats", input(`"x"`, `"FP32"`, `[-1,2,2,3],"format":"FORMAT_NHWC","image":{"channels":"rgb"}`), "pictures are UINT8"},
		{"image without a format", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"image":{"channels":"rgb"}`), `image: pictures are UINT8 of 3 dimensions`},
		{"image of no channels", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"format":"FORMAT_NHWC","image":{}`), `channels "", expected rgb, bgr or gray`},
		{"gray image of colours", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"format":"FORMAT_NHWC","image":{"channels":"gray"}`),
			"have 1 channels, shape [2, 2, 3] of one says 3"},
		{"image of planes", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"format":"FORMAT_NCHW","image":{"channels":"bgr"}`), "of format FORMAT_NCHW have 3 channels, shape [2, 2, 3] of one says 2"},
		{"resize", input(`"x"`, `"UINT8"`, `[-1,-1,-1,3],"format":"FORMAT_NHWC","image":{"channels":"rgb","resize":"squeeze"}`),
			`resize "squeeze", expected stretch, letterbox or crop`},
		{"resize to nothing", input(`"x"`, `"UINT8"`, `[-1,-1,-1,3],"format":"FORMAT_NHWC","image":{"channels":"rgb","resize":"stretch"}`),
			"resize to 0 x 0 pixels, expected 1 to 65535"},
		{"resize of one size", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"format":"FORMAT_NHWC","image":{"channels":"rgb","resize":"stretch","height":2,"width":2}`),
			"has no -1 for height and width"},
		{"a size and no resize", input(`"x"`, `"UINT8"`, `[-1,2,2,3],"format":"FORMAT_NHWC","image":{"channels":"rgb","height":2}`),
			"needs resize stretch, letterbox or crop"},
		{"image of an output", output(`"UINT8"`, `[-1,2,2,3],"image":{"channels":"rgb"}`), `output "y" is an image, which only inputs can be`},
		{"labels of an input", input(`"x"`, `"FP32"`, `[-1,2],"labels":["a","b"]`), "which only outputs can have"},
		{"labels of texts", output(`"BYTES"`, `[-1,2],"labels":["a","b"]`), "need a datatype that can be ranked; it is BYTES"},
		{"label type", output(`"FP32"`, `[-1,2],"labels":["a",2]`), "not the JSON expected"},
		{"label with a newline", output(`"FP32"`, `[-1,2],"labels":["a","b\nc"]`), `label 1 of output "y", "b\nc", has a control character at byte 1`},
		{"long label", output(`"FP32"`, `[-1,2],"labels":["`+strings.Repeat("é", 129)+`"]`), `label 0 of output "y" has 258 bytes, limit 256`},
		{"many labels", output(`"FP32"`, `[-1,2],"labels":[`+strings.Repeat(`"",`, 65536)+`""]`), "65537 labels of one output, limit 65536"},
		{"max_batch", hello(`{"max_batch":-1}`), "max_batch is -1"},
		{"concurrency", hello(`{"concurrency":65}`), "concurrency is 65"},
		{"slots", hello(`{"slots":65}`), "slots is 65"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { r.refuses(t, tt.hello, tt.want) })
	}
	if n := len(r.sched.Models()); n != 0 {
		t.Errorf("%d models were registered", n)
	}
}

// refuses sends a hello that is refused with want in the error.
func (r *rig) refuses(t *testing.T, hello, want string) {
	t.Helper()
	p := r.peer(t)
	if err := p.Send([]byte("hello"), []byte(hello)); err != nil {
		t.Fatal(err)
	}
	f, err := p.Receive()
	if err != nil {
		t.Fatal(err)
	}
	var refused struct{ Error string }
	if err := json.Unmarshal(f[1], &refused); err != nil || string(f[0]) != "refused" ||
		!strings.Contains(refused.Error, want) {
		t.Errorf("answered %q, expected refused with %q", f, want)
	}
}

// TestV4OtherSpec: a declaration that differs from that of the live replicas is refused, and the
// error names both.
func TestV4OtherSpec(t *testing.T) {
	r := newRig(t, containers.Config{})
	r.join(t, echo(nil))
	other := echo(nil)
	other.Inputs = []tensor.Spec{{Name: "x", DType: tensor.Float64, Shape: tensor.Shape{-1, 4}}}
	_, err := containertest.Join(r, other)
	var refused *containertest.RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "float32") || !strings.Contains(refused.Reason, "float64") {
		t.Errorf("got %v, expected a refusal with both", err)
	}
	if err := r.echoes(echoID); err != nil {
		t.Error(err)
	}
}
