package tcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// answers is a worker that answers every row with the same outputs: text, tensor, text.
func answers(b *scheduler.Batch) error {
	texts := make([]string, 2*b.Rows)
	for i := range texts {
		texts[i] = []string{"a", "b"}[i%2]
	}
	pair, err := tensor.FromStrings(tensor.Shape{b.Rows, 2}, texts)
	if err != nil {
		return err
	}
	one, err := tensor.FromStrings(tensor.Shape{b.Rows}, texts[:b.Rows])
	if err != nil {
		return err
	}
	number, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]float32, b.Rows))
	if err != nil {
		return err
	}
	b.Complete([]tensor.Tensor{pair, number, one}, nil)
	return nil
}

func outputs(names ...string) []tensor.Spec {
	return []tensor.Spec{
		{Name: names[0], DType: tensor.Bytes, Shape: tensor.Shape{-1, 2}},
		{Name: names[1], DType: tensor.Float32, Shape: tensor.Shape{-1}},
		{Name: names[2], DType: tensor.Bytes, Shape: tensor.Shape{-1}},
	}
}

// An answer has its texts by name, in their shapes, and in bridge form a field for each output.
func TestTextsAndFieldsOfAnAnswer(t *testing.T) {
	r := newRig(t, nil)
	inputs := []tensor.Spec{{Name: "x", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	r.model("m", scheduler.Spec{Inputs: inputs, Outputs: outputs("pair", "score", "label")}, answers)
	// An output with the name of a member of ours replaces that member.
	r.model("odd", scheduler.Spec{Inputs: inputs, Outputs: outputs("id", "model_name", "__tensors__")}, answers)
	c := r.dial()
	for _, tt := range []struct {
		model, metadata string
		rows            int
		want            string
	}{
		{"m", `{"id":1}`, 0, `{"id":1,"__texts__":{"pair":["a","b"],"label":"a"},"model_name":"m","model_version":"1","__tensors__":["score"]}`},
		{"m", "", 1, `{"__texts__":{"pair":[["a","b"]],"label":["a"]},"model_name":"m","model_version":"1","__tensors__":["score"]}`},
		{"m", "", 2, `{"__texts__":{"pair":[["a","b"],["a","b"]],"label":["a","b"]},"model_name":"m","model_version":"1","__tensors__":["score"]}`},
		{"m", `{"x":"__tensor__0","id":"null","user":"null","timeout_ms":"null","version":"null"}`, 0,
			`{"id":"null","model_name":"m","model_version":"1","__tensors__":["score"],"pair":["a","b"],"score":"__tensor__0","label":"a"}`},
		{"m", `{"x":"__tensor__0","id":"7"}`, 2,
			`{"id":"7","model_name":"m","model_version":"1","__tensors__":["score"],"pair":[["a","b"],["a","b"]],"score":"__tensor__0","label":["a","b"]}`},
		{"m", `{"q":{"x":"__tensor__0"},"__tensors__":["y"]}`, 0,
			`{"model_name":"m","model_version":"1","__tensors__":["score"],"pair":["a","b"],"score":"__tensor__0","label":"a"}`},
		{"odd", `{"x":"__tensor__0","id":"7"}`, 0, `{"model_version":"1","id":["a","b"],"model_name":"__tensor__0","__tensors__":"a"}`},
	} {
		shape := tensor.Shape{}
		if tt.rows > 0 {
			shape = tensor.Shape{tt.rows}
		}
		in, _ := tensor.FromSlice(shape, make([]float32, max(tt.rows, 1)))
		c.send(&shiva.Message{Namespace: tt.model, Metadata: []byte(tt.metadata), Tensors: []tensor.Tensor{in}})
		m := c.next()
		if m == nil || string(m.Metadata) != tt.want || len(m.Tensors) != 1 || !m.Tensors[0].Shape.Equal(shape) {
			t.Errorf("%s %s: got %s, expected %s", tt.model, tt.metadata, describeMessage(m), tt.want)
		}
	}
}

// An answer in bridge form nests as its question: outputs are where the inputs of their names were,
// in lists as long, and in objects that their names begin with.
func TestAnswersNestAsQuestions(t *testing.T) {
	r := newRig(t, nil)
	inputs := []tensor.Spec{{Name: "image", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	r.model("m", scheduler.Spec{Inputs: inputs, Outputs: outputs("note", "image", "frame.label")}, answers)
	c := r.dial()
	list := func(n int) string {
		all := make([]string, n)
		for i := range all {
			all[i] = fmt.Sprintf(`"__tensor__%d"`, i)
		}
		return "[" + strings.Join(all, ",") + "]"
	}
	names := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`"image",`, n), ",") + "]" }
	for _, tt := range []struct {
		metadata     string
		rows, single int // tensors of the question and of the answer; 0: one without a dimension
		want         string
	}{
		{`{"frame":{"t":5,"image":"__tensor__0"}}`, 1, 1, `"frame":{"image":"__tensor__0","label":"a"},"note":["a","b"]`},
		{`{"frame":{"t":5},"image":"__tensor__0"}`, 1, 1, `"frame":{"label":"a"},"image":"__tensor__0","note":["a","b"]`},
		{`{"frame":{},"image":"__tensor__0"}`, 1, 1, `"frame":{"label":"a"},"image":"__tensor__0","note":["a","b"]`},
		{`{"frame":"null","image":"__tensor__0"}`, 1, 1, `"image":"__tensor__0","note":["a","b"],"frame.label":"a"`},
		{`{"list":[{"t":1},{"image":"__tensor__0"},[2]],"tag":[[1],{}]}`, 1, 1, `"list":[null,{"image":"__tensor__0"},null],"note":["a","b"],"frame.label":"a"`},
		{`{"id":[{"image":"__tensor__0"}]}`, 1, 1, `"note":["a","b"],"image":"__tensor__0","frame.label":"a"`},
		{`{"note":{"image":"__tensor__0"}}`, 1, 1, `"note":["a","b"],"image":"__tensor__0","frame.label":"a"`},
		{`{"id":1,"deep":{"frame":{"image":"__tensor__0"}},"model_name":{"x":1},"frame":{"label":{"t":2}}}`, 1, 1,
			`"deep":{"frame":{"image":"__tensor__0"}},"frame":{"label":"a"},"note":["a","b"]`},
		{`{"image":` + list(2) + `}`, 2, 2, `"image":` + list(2) + `,"note":[["a","b"],["a","b"]],"frame.label":["a","b"]`},
		{`{"frame":{"image":["__tensor__1","__tensor__0"]}}`, 2, 2, `"frame":{"image":` + list(2) + `,"label":["a","b"]},"note":[["a","b"],["a","b"]]`},
		// With the other output, the tensors would be more than a message can have.
		{`{"image":` + list(255) + `}`, 255, 1, `"image":"__tensor__0","note":`},
	} {
		m := shiva.Message{Namespace: "m", Metadata: []byte(tt.metadata)}
		for i := range tt.rows {
			in, _ := tensor.FromSlice(tensor.Shape{}, []float32{float32(i)})
			m.Tensors = append(m.Tensors, in)
		}
		c.send(&m)
		got := c.next()
		want := `"model_name":"m","model_version":"1","__tensors__":` + names(tt.single) + `,` + tt.want
		if got == nil || !json.Valid(got.Metadata) || !strings.Contains(string(got.Metadata), want) ||
			len(got.Tensors) != tt.single {
			t.Errorf("%.80s: got %s, expected %s", tt.metadata, describeMessage(got), want)
		}
	}
}

// The answer of a model without inputs has both forms: a bridge's request to it looks like any
// other. A member of the server with the name of an output keeps the answer plain.
func TestFieldsOfModelsWithoutInputs(t *testing.T) {
	r := newRig(t, nil)
	r.model("silent", scheduler.Spec{Outputs: outputs("pair", "score", "label")}, answers)
	r.model("odd", scheduler.Spec{Outputs: outputs("id", "score", "label")}, answers)
	c := r.dial()
	const plain = `"__texts__":{"pair":["a","b"],"label":"a"},"model_name":"silent","model_version":"1","__tensors__":["score"]`
	const fields = `,"pair":["a","b"],"score":"__tensor__0","label":"a"}`
	for _, tt := range []struct{ model, metadata, want string }{
		{"silent", ``, `{` + plain + fields},
		{"silent", `{"id":7,"k":1,"label":"null"}`, `{"id":7,"k":1,` + plain + fields},
		{"odd", `{}`, `{"__texts__":{"id":["a","b"],"label":"a"},"model_name":"odd","model_version":"1","__tensors__":["score"],"id":["a","b"],"score":"__tensor__0","label":"a"}`},
		{"odd", `{"id":7}`, `{"id":7,"__texts__":{"id":["a","b"],"label":"a"},"model_name":"odd","model_version":"1","__tensors__":["score"]}`},
	} {
		c.send(&shiva.Message{Namespace: tt.model, Metadata: []byte(tt.metadata)})
		if m := c.next(); m == nil || string(m.Metadata) != tt.want || len(m.Tensors) != 1 ||
			len(m.Tensors[0].Shape) != 0 {
			t.Errorf("%s %s: got %s, expected %s", tt.model, tt.metadata, describeMessage(m), tt.want)
		}
	}
	// Only a bridge refers to tensors.
	number, _ := tensor.FromSlice(tensor.Shape{}, []float32{1})
	c.send(&shiva.Message{Namespace: "silent", Metadata: []byte(`{"a":"__tensor__0"}`),
		Tensors: []tensor.Tensor{number}})
	if m := c.next(); m == nil || !strings.Contains(string(m.Metadata), `field \"a\" refers to a tensor, but matches no input; the model takes no inputs`) {
		t.Errorf("a tensor in bridge form: %s", describeMessage(m))
	}
}

// A request without tensors whose keys name inputs is a bridge's, too.
func TestFieldsWithoutTensors(t *testing.T) {
	r := newRig(t, nil)
	spec := scheduler.Spec{Inputs: []tensor.Spec{{Name: "inputs", DType: tensor.Bytes, Shape: tensor.Shape{-1}}},
		Outputs: outputs("pair", "score", "label")}
	r.model("text", spec, answers)
	c := r.dial()
	for metadata, want := range map[string]string{
		`{"inputs":"hello","priority":"null"}`: `"score":"__tensor__0"`,
		`{"__texts__":{"inputs":"hello"}}`:     `"__texts__":{"pair":["a","b"],"label":"a"}`,
		`{"input":"hello"}`:                    `expected 1 tensor (\"inputs\" bytes [-1]), got 0`,
	} {
		c.send(&shiva.Message{Namespace: "text", Metadata: []byte(metadata)})
		if m := c.next(); m == nil || !json.Valid(m.Metadata) || !strings.Contains(string(m.Metadata), want) {
			t.Errorf("%s: expected %s, got %s", metadata, want, describeMessage(m))
		}
	}
}

// Answers of legacy models in bridge form: the tensor that their text encodes, else the text.
func TestFieldsOfLegacyModels(t *testing.T) {
	r := newRig(t, nil)
	spec := containertest.OldSpec(tensor.Bytes, tensor.Bytes)
	r.model("old", spec, func(b *scheduler.Batch) error {
		echo := b.Parts[0].Inputs[0]
		echo.Retain()
		b.Complete([]tensor.Tensor{echo}, nil)
		return nil
	})
	floats := spec
	floats.Outputs = []tensor.Spec{{Name: "output", DType: tensor.Float32, Shape: tensor.Shape{-1}}}
	r.model("older", floats, func(b *scheduler.Batch) error {
		out, err := tensor.FromSlice(tensor.Shape{b.Rows}, make([]float32, b.Rows))
		b.Complete([]tensor.Tensor{out}, nil)
		return err
	})
	c := r.dial()
	for _, tt := range []struct{ model, metadata, want string }{
		{"old", `{"input":"a cat"}`, `{"model_name":"old","model_version":"1","__tensors__":[],"output":"a cat"}`},
		{"old", `{"input":"[1, 2]"}`, `{"model_name":"old","model_version":"1","__tensors__":["output"],"output":"__tensor__0"}`},
		{"old", `{"input":["a","b"]}`, `{"model_name":"old","model_version":"1","__tensors__":[],"output":["a","b"]}`},
		{"older", `{"input":"a"}`, `{"model_name":"older","model_version":"1","__tensors__":["output"],"output":"__tensor__0"}`},
		{"old", `{"inputs":"a"}`, `{"output":"a","__texts__":{"output":"a"},"model_name":"old","model_version":"1","__tensors__":[]}`},
		{"old", `{"__texts__":{"input":["a","{}"]}}`, `{"outputs":["a",{}],"__texts__":{"output":["a","{}"]},"model_name":"old","model_version":"1","__tensors__":[]}`},
	} {
		c.send(&shiva.Message{Namespace: tt.model, Metadata: []byte(tt.metadata)})
		if m := c.next(); m == nil || string(m.Metadata) != tt.want {
			t.Errorf("%s: got %s, expected %s", tt.metadata, describeMessage(m), tt.want)
		}
	}
}
