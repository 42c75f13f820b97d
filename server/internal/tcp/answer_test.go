package tcp

import (
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// The text of a legacy model's answer is in the metadata, and also a tensor if it is numbers.
func TestFlatModel(t *testing.T) {
	r := newRig(t, nil)
	spec := containertest.OldSpec(tensor.Float64, tensor.Bytes)
	var answer atomic.Value // of func([]float64) string
	answer.Store(func(v []float64) string { return fmt.Sprint(len(v)) })
	r.model("sum", spec, func(b *scheduler.Batch) error {
		var texts []string
		for _, p := range b.Parts {
			v, err := tensor.Values[float64](p.Inputs[0])
			if err != nil {
				return err
			}
			n := len(v) / p.Rows
			for i := range p.Rows {
				texts = append(texts, answer.Load().(func([]float64) string)(v[i*n:(i+1)*n]))
			}
		}
		out, err := tensor.FromStrings(tensor.Shape{len(texts)}, texts)
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	})
	c := r.dial()
	ask := func(metadata string) *shiva.Message {
		in, _ := tensor.FromSlice(tensor.Shape{2, 3}, []float64{1, 2, 3, 4, 5, math.Pi})
		c.send(&shiva.Message{Namespace: "sum", Metadata: []byte(metadata), Tensors: []tensor.Tensor{in}})
		m := c.next()
		if m == nil || m.Namespace != "sum" {
			t.Fatalf("expected an answer, got %s", describeMessage(m))
		}
		return m
	}
	check := func(m *shiva.Message, metadata, shape string) {
		t.Helper()
		if !strings.HasPrefix(string(m.Metadata), metadata) {
			t.Errorf("expected metadata %s…, got %s", metadata, m.Metadata)
		}
		got := "no tensor"
		if len(m.Tensors) > 0 {
			got = m.Tensors[0].DType.String() + m.Tensors[0].Shape.String()
		}
		if got != shape {
			t.Errorf("expected %s, got %s", shape, got)
		}
	}
	check(ask(""), `{"output":6,"__texts__":{"output":"6"},"model_name":"sum"`, "float64[1]")
	check(ask(`{"batch":true}`), `{"outputs":[3,3],"__texts__":{"output":["3","3"]},`, "float64[2]")
	answer.Store(func([]float64) string { return "[1.5, 2]" })
	check(ask(`{"batch":true}`), `{"outputs":[[1.5, 2],[1.5, 2]],`, "float64[2, 2]")
	check(ask(""), `{"output":[1.5, 2],`, "float64[2]")
	answer.Store(func([]float64) string { return "[null, 1]" })
	check(ask(""), `{"output":[null, 1],`, "no tensor")
	answer.Store(func([]float64) string { return "a cat" })
	check(ask(""), `{"output":"a cat",`, "no tensor")
	answer.Store(func([]float64) string { return `{"label":"cat"}` })
	check(ask(`{"batch":true}`), `{"outputs":[{"label":"cat"},{"label":"cat"}],`, "no tensor")
	// JSON that encoding/json accepts, but not a client's decoder.
	for _, s := range []string{"\"caf\xe9\"", `"\ud83c"`, strings.Repeat("[", 127) + strings.Repeat("]", 127)} {
		answer.Store(func([]float64) string { return s })
		check(ask(`{"batch":true}`), `{"outputs":["`, "no tensor")
	}
	answer.Store(func([]float64) string { return " " + strings.Repeat("[", 126) + strings.Repeat("]", 126) })
	check(ask(`{"batch":true}`), `{"outputs":[ [[`, "no tensor")
}

// Float answers of the oldest containers become a tensor of their own type, and metadata as far as
// JSON can express them.
func TestFlatFloats(t *testing.T) {
	r := newRig(t, nil)
	spec := containertest.OldSpec(tensor.Float64, tensor.Float32)
	r.model("old", spec, func(b *scheduler.Batch) error {
		var answers []float32
		for _, p := range b.Parts {
			v, err := tensor.Values[float64](p.Inputs[0])
			if err != nil {
				return err
			}
			for _, x := range v[:p.Rows] {
				answers = append(answers,
					map[float64]float32{1: 0.1, 2: float32(math.Inf(1)), 3: float32(math.NaN())}[x])
			}
		}
		out, err := tensor.FromSlice(tensor.Shape{b.Rows}, answers)
		if err != nil {
			return err
		}
		b.Complete([]tensor.Tensor{out}, nil)
		return nil
	})
	c := r.dial()
	for _, tt := range []struct{ metadata, want, shape string }{
		{`{"batch":true}`, `{"outputs":[0.1,"+Inf","NaN"],"model_name":"old","model_version":"1","__tensors__":["output"]}`,
			"[3]"},
		{"", `{"output":0.1,"model_name":"old","model_version":"1","__tensors__":["output"]}`, "[1]"},
	} {
		in, _ := tensor.FromSlice(tensor.Shape{3, 1}, []float64{1, 2, 3})
		c.send(&shiva.Message{Namespace: "old", Metadata: []byte(tt.metadata), Tensors: []tensor.Tensor{in}})
		m := c.next()
		if m == nil || string(m.Metadata) != tt.want || len(m.Tensors) != 1 || m.Tensors[0].DType != tensor.Float32 ||
			m.Tensors[0].Shape.String() != tt.shape {
			t.Errorf("%s: got %s", tt.metadata, describeMessage(m))
		}
	}
}

// The missing models of an application have the form that they have on all wires.
func TestChoice(t *testing.T) {
	c := &gate.Choice{Application: "app", Confidence: 0.5,
		Missing: []gate.Missing{{Model: "a/1", Why: `"late"`}, {Model: "b/2", Why: "gone"}}}
	want := `"application":"app","confidence":0.5,"missing":{"a/1":"\"late\"","b/2":"gone"},`
	if got := string(appendChoice(nil, c)); got != want {
		t.Errorf("got %s, expected %s", got, want)
	}
}
