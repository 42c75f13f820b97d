package containers

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/containers/zmtp"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// cut splits fuzzed bytes into frames: each has a length byte before it (255: the rest).
func cut(in []byte) *zmtp.Message {
	m := new(zmtp.Message)
	for len(in) > 0 && len(m.Frames) < 100 {
		n, rest := int(in[0]), in[1:]
		if n == 255 || n > len(rest) {
			n = len(rest)
		}
		m.Frames = append(m.Frames, zmtp.Frame{Data: rest[:n:n]})
		in = rest[n:]
	}
	return m
}

func join(frames ...string) (b []byte) {
	for _, f := range frames {
		b = append(append(b, byte(min(len(f), 255))), f...)
	}
	return b
}

// FuzzSessionMessages feeds the codecs with messages of a registered container. Their results
// must be consistent: views within the frames, and texts that add up.
func FuzzSessionMessages(f *testing.F) {
	for _, generation := range []string{"1", "1b", "2", "2a", "3"} {
		text, err := os.ReadFile("testdata/gen" + generation + ".json")
		if err != nil {
			f.Fatal(err)
		}
		var steps []step
		if err := json.Unmarshal(text, &steps); err != nil {
			f.Fatal(err)
		}
		for _, s := range steps {
			var frames []string
			for _, h := range s.Frames {
				b, _ := hex.DecodeString(h)
				frames = append(frames, string(b))
			}
			f.Add(join(frames...))
		}
	}
	id := "\x01\x00\x00\x00\x00\x00\x00\x00"
	f.Add(join("result", id, `{"outputs":[{"name":"y","datatype":"FP32","shape":[2,1]}],"errors":[{"row":1,"message":"x"}]}`,
		"01234567"))
	f.Add(join("result", id, `{"error":"x"}`))
	f.Add(join("heartbeat"))
	f.Add(join("grant", `{"grant":17,"here":12,"elsewhere":20,"target":40}`))
	f.Add(join("grant", `{"each":true}`))
	f.Add(join("result", id, `{"outputs":[{"name":"y","datatype":"FP32","shape":[2,1]}],"together":36,"queued_ms":2.5}`,
		"01234567"))
	f.Add(join("feedback", `{"application":"a","rows":1,"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}`, "0123"))
	f.Add(join("hello", `{"protocol":4,"model":"m","version":"1","inputs":[{"name":"x","datatype":"FP32","shape":[-1]}]}`))
	limits := Settings{}.withDefaults().Limits
	spec := scheduler.Spec{
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 1}}},
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		budgettest.Input(t)
		m := cut(in)
		if len(m.Frames) == 0 {
			return
		}
		for d := range DialectV2a + 1 {
			_, _ = recognise(m, d, limits, nil)
		}
		four := &v4{limits: limits}
		four.bind(registration{spec: spec, grants: true})
		base := legacy{limits: limits}
		for _, c := range []codec{four, &v3{base}, &v2{legacy: base}, &v2{legacy: base, floats: true},
			&v1{legacy: base}} {
			got, err := c.parse(m)
			if err != nil {
				continue
			}
			switch got.event {
			case evHello:
				checkRegistration(t, got.hello)
			case evResult:
				for _, rows := range []int{1, 2, 3} {
					a, err := c.result(m, &scheduler.Batch{Rows: rows})
					if err != nil {
						continue
					}
					if len(a.outputs) != 1 {
						t.Fatalf("%d outputs", len(a.outputs))
					}
					o := a.outputs[0]
					if c != codec(four) && (o.Check() != nil || !o.Shape.Equal(tensor.Shape{rows})) {
						t.Fatalf("%s: %v for %d rows", c.generation(), o, rows)
					}
				}
			}
		}
	})
}

// FuzzHello: an accepted registration has the properties that routes, logs and metrics rely on.
func FuzzHello(f *testing.F) {
	f.Add(containertest.Hello(containertest.Model{Name: "m", Version: "1", Instance: "é",
		Inputs:     []tensor.Spec{{Name: "x", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		Outputs:    []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}, Labels: []string{"é", ""}}},
		Parameters: json.RawMessage(`{"a":1}`)}))
	f.Add(containertest.Hello(containertest.Model{Name: "m", Version: "1", Feedback: true,
		Inputs:  []tensor.Spec{{Name: "x", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}}}}))
	f.Add(containertest.Hello(containertest.Model{Name: "m", Version: "1",
		Inputs: []tensor.Spec{{Name: "i", DType: tensor.Uint8, Shape: tensor.Shape{-1, -1, -1, 1},
			Format: tensor.FormatNHWC, Image: &tensor.Image{Channels: "gray", Regions: true}}},
		Outputs: []tensor.Spec{{Name: "y", DType: tensor.Float32, Shape: tensor.Shape{-1, 10}}}}))
	f.Add([]byte(`{"protocol":4,"model":"\u0000","version":"/"}`))
	limits := Settings{}.withDefaults().Limits
	f.Fuzz(func(t *testing.T, in []byte) {
		budgettest.Input(t)
		if r, err := readHello(in, limits); err == nil {
			checkRegistration(t, r)
		}
	})
}

// TestHelloTakesNoMemory: the memory for a hello, which any peer may send, is bounded by what a
// model can declare.
func TestHelloTakesNoMemory(t *testing.T) {
	limits := Settings{}.withDefaults().Limits
	for name, text := range map[string]string{
		"inputs":     `"inputs":[` + strings.Repeat(`{},`, 80_000) + `{}]`,
		"dimensions": `"inputs":[{"name":"x","datatype":"FP32","shape":[` + strings.Repeat(`1,`, 120_000) + `1]}]`,
		"deep": `"inputs":[` + strings.Repeat(`[`, 100) + strings.Repeat(`]`, 100) +
			strings.Repeat(`,{}`, 80_000) + `]`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readHello([]byte(`{"protocol":4,"model":"m","version":"1",`+text+`}`), limits)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; err == nil || taken > uint64(2*len(text)+64<<10) {
			t.Errorf("%s: a hello of %d bytes took %d (%v)", name, len(text), taken, err)
		}
	}
}

func checkRegistration(t *testing.T, r registration) {
	t.Helper()
	for _, s := range []string{r.model.Name, r.model.Version, r.label, r.spec.Platform} {
		if len(s) > 128 || strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) }) {
			t.Fatalf("text %q", s)
		}
	}
	if r.model.Name == "" || r.model.Version == "" || r.model.Name[0] == '!' ||
		strings.Contains(r.model.Name+r.model.Version, "/") {
		t.Fatalf("model %+v", r.model)
	}
	if r.spec.Inputs == nil || len(r.spec.Outputs) == 0 || r.slots < 0 || r.spec.MaxBatch < 0 {
		t.Fatalf("spec %+v", r.spec)
	}
	if len(r.spec.Parameters) > 0 && !json.Valid(r.spec.Parameters) {
		t.Fatalf("parameters %q", r.spec.Parameters)
	}
	for _, s := range append(r.spec.Inputs[:len(r.spec.Inputs):len(r.spec.Inputs)], r.spec.Outputs...) {
		if !s.DType.Valid() || s.Name == "" {
			t.Fatalf("tensor %+v", s)
		}
		for _, label := range s.Labels {
			if len(label) > 256 || !utf8.ValidString(label) || strings.ContainsFunc(label, unicode.IsControl) {
				t.Fatalf("label %q", label)
			}
		}
	}
}
