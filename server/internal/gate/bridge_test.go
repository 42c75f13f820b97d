package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestInBridgeForm(t *testing.T) {
	for metadata, want := range map[string]bool{
		``:                                   false,
		`{}`:                                 false,
		`{"a":"__tensor__0"}`:                true,
		`{"a":1, "b":{"c":["__tensor__7"]}}`: true,
		`{"a":"__tensor__"}`:                 false,
		`{"a":"__tensor__x"}`:                false,
		`{"a":"__tensor__1000"}`:             false,
		`{"a":"__tensor__-1"}`:               false,
		`{"a":"x__tensor__0"}`:               false,
		`{"a":"\"__tensor__0"}`:              false,
		`{"__tensor__0":"a"}`:                false,
		`{"a":{"__tensor__0" : "a"}}`:        false,
		`{"__tensors__":["__tensor__0"]}`:    false,
		`{"__texts__":{"a":"__tensor__0"}}`:  false,
	} {
		if got := InBridgeForm([]byte(metadata)); got != want {
			t.Errorf("%s: %v", metadata, got)
		}
	}
}

// numbered returns n tensors of one float32 each, which is the tensor's index.
func numbered(n int) []tensor.Tensor {
	list := make([]tensor.Tensor, n)
	for i := range list {
		list[i], _ = tensor.FromSlice(tensor.Shape{1}, []float32{float32(i)})
	}
	return list
}

func TestBridge(t *testing.T) {
	sub := []tensor.Spec{spec("image", tensor.Float32, -1, 1), spec("mask", tensor.Float32, -1, 1)}
	one := []tensor.Spec{spec("image", tensor.Float32, -1, 1)}
	dotted := []tensor.Spec{spec("left.image", tensor.Float32, -1, 1), spec("right.0", tensor.Float32, -1, 1)}
	typed := []tensor.Spec{spec("f", tensor.Float32, -1), spec("i", tensor.Int64, -1), spec("b", tensor.Bool, -1),
		spec("s", tensor.Bytes, -1)}
	text := []tensor.Spec{spec("inputs", tensor.Bytes, -1)}
	var wide []tensor.Spec
	var fields []string
	for i := range 255 {
		wide = append(wide, spec(fmt.Sprintf("x%d", i), tensor.Float32, -1, 1))
		fields = append(fields, fmt.Sprintf(`"x%d":"__tensor__%d"`, i, 254-i))
	}
	all := "{" + strings.Join(fields, ",") + "}"
	for _, tc := range []struct {
		name     string
		specs    []tensor.Spec
		tensors  int
		metadata string
		want     string // rows, inputs, and what the container gets; or the error
	}{
		{"fields in another order", sub, 2, `{"mask":"__tensor__0","image":"__tensor__1"}`, "1 [1][0] "},
		{"fields of no input", sub, 2, `{"mask":"__tensor__0", "camera":"c1","n":5,"image":"__tensor__1","none":"null"}`,
			`1 [1][0] {"camera":"c1","n":5}`},
		{"nested", sub, 2, `{"frame":{"image":"__tensor__0","t":1.5},"masks":[{"mask":"__tensor__1"}]}`, `1 [0][1] {"frame":{"t":1.5}}`},
		{"nested by path", dotted, 2, `{"right":["__tensor__1"],"left":{"image":"__tensor__0","note":"null"}}`, `1 [0][1] `},
		{"a parameter of an input's name", one, 1, `{"meta":{"image":"north"},"image":"__tensor__0"}`, `1 [0] {"meta":{"image":"north"}}`},
		{"a list of tensors is rows", one, 3, `{"image":["__tensor__2","__tensor__0","__tensor__1"]}`, "3 [2 0 1] "},
		{"255 tensors by name", wide, 255, all, "1 " + func() string {
			s := ""
			for i := range 255 {
				s += fmt.Sprintf("[%d]", 254-i)
			}
			return s
		}() + " "},
		{"values of one row", typed, 0, `{"s":"grün","b":true,"i":-7,"f":0.1,"k":1}`, `1 [0.1][-7][1][grün] {"k":1}`},
		{"values of rows", typed, 0, `{"f":[1,2],"i":[3,4],"b":[false,true],"s":["a","b"]}`, `2 [1 2][3 4][0 1][a b] `},
		{"no rows", typed, 0, `{"f":[],"i":[],"b":[],"s":[]}`, "0 [][][][] "},
		{"an input called as a key of old", text, 0, `{"inputs":"a"}`, "1 [a] "},

		{"a missing field", sub, 1, `{"mask":"__tensor__0","image":"null"}`, `input "image" is missing`},
		{"no tensor at all", one, 0, `{"image":"null","n":1}`, `expected 1 tensor ("image" float32 [-1, 1]), got 0`},
		{"a field that is no input", one, 2, `{"image":"__tensor__0","depth":"__tensor__1"}`, `field "depth" refers to a tensor, but matches no input; the model takes "image"`},
		{"a tensor that no field names", one, 2, `{"image":"__tensor__1"}`, "no field refers to tensor 0 of 2"},
		{"a tensor that did not come", one, 1, `{"image":"__tensor__1"}`, `input "image": it refers to tensor 1, counted from 0, but the message has 1`},
		{"a tensor of two fields", sub, 1, `{"image":"__tensor__0","mask":"__tensor__0"}`, "another field refers to tensor 0 already"},
		{"two fields for an input", one, 2, `{"a":{"image":"__tensor__0"},"b":{"image":"__tensor__1"}}`, `input "image" is given twice: field "b.image" is the second`},
		{"a list of tensors and text", one, 1, `{"image":["__tensor__0","x"]}`, `a list of tensors only, got "x"`},
		{"a fraction for an integer", typed, 0, `{"f":1,"i":1.5,"b":true,"s":"x"}`, `input "i"`},
		{"an integer out of range", typed, 0, `{"f":1,"i":9223372036854775808,"b":true,"s":"x"}`, `expected a whole number from -9223372036854775808 to 9223372036854775807 (INT64), got 9223372036854775808`},
		{"a number for text", typed, 0, `{"f":1,"i":1,"b":true,"s":5}`, `input "s": expected a string`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Call{Target: &Target{ID: scheduler.ModelID{Name: "m", Version: "1"},
				Spec: scheduler.Spec{Inputs: tc.specs}}}
			c.Inputs = c.inputs[:0]
			p := Request{Bridge: InBridgeForm([]byte(tc.metadata)), Parameters: []byte(tc.metadata)}
			if text := jsonscan.Field(p.Parameters, "inputs"); text != nil { // as the door does
				p.Legacy, p.Parameters = text, nil
			}
			pool := tensor.NewPool(1 << 20)
			defer func() {
				if c.Close(); pool.InUse() != 0 {
					t.Errorf("%d bytes are still out", pool.InUse())
				}
			}()
			if err := c.arrange(with(&p, numbered(tc.tensors)), pool); err != nil {
				if !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("expected %q, got %v", tc.want, err)
				}
				return
			}
			got := fmt.Sprint(c.Rows, " ")
			for _, in := range c.Inputs {
				got += show(t, in)
			}
			if got += " " + string(p.Parameters); got != tc.want {
				t.Errorf("expected %s, got %s", tc.want, got)
			}
			if !c.Bridge {
				t.Error("the answer will not be in bridge form")
			}
		})
	}
}

func show(t *testing.T, x tensor.Tensor) string {
	t.Helper()
	if x.DType == tensor.Bytes {
		v, err := tensor.Strings(x)
		if err != nil {
			t.Error(err)
		}
		return fmt.Sprint(v)
	}
	wide, err := tensor.Cast(x, tensor.Float64, nil)
	if x.DType == tensor.Float32 { // 0.1 exactly as written
		v, _ := tensor.Values[float32](x)
		return fmt.Sprint(v)
	}
	if err != nil {
		t.Error(err)
	}
	v, _ := tensor.Values[float64](wide)
	return fmt.Sprint(v)
}

// Fields of a legacy model are its one input.
func TestBridgeToLegacy(t *testing.T) {
	numbers := containertest.OldSpec(tensor.Float32, tensor.Bytes)
	texts := containertest.OldSpec(tensor.Bytes, tensor.Bytes)
	for _, tc := range []struct {
		spec     scheduler.Spec
		tensors  int
		metadata string
		want     string
	}{
		{numbers, 1, `{"input":"__tensor__0","k":"v"}`, `1 true [1, 1] {"k":"v"}`},
		{texts, 0, `{"input":"a"}`, "1 true [1] "},
		{texts, 0, `{"input":["a","b"]}`, "2 false [2] "},
	} {
		c := &Call{Target: &Target{Spec: tc.spec}}
		c.Inputs = c.inputs[:0]
		p := Request{Bridge: tc.tensors > 0, Parameters: []byte(tc.metadata)}
		if err := c.arrange(with(&p, numbered(tc.tensors)), nil); err != nil {
			t.Errorf("%s: %v", tc.metadata, err)
			continue
		}
		if got := fmt.Sprintf("%d %v %s %s", c.Rows, c.Squeeze, c.Inputs[0].Shape, p.Parameters); got != tc.want ||
			!c.Bridge {
			t.Errorf("%s: expected %s, got %s", tc.metadata, tc.want, got)
		}
	}
}

// A plain client's metadata goes to the container, whatever is in it.
func TestPlainIsNoBridge(t *testing.T) {
	for _, metadata := range []string{"", `{"note":"__tensor__"}`, `{"x":5,"y":{"x":"null"},"none":"null"}`} {
		c := &Call{Target: &Target{Spec: scheduler.Spec{Inputs: []tensor.Spec{spec("x", tensor.Float32, -1)}}}}
		c.Inputs = c.inputs[:0]
		p := Request{Bridge: InBridgeForm([]byte(metadata)), Parameters: []byte(metadata)}
		if err := c.arrange(with(&p, numbered(1)), nil); err != nil || c.Bridge || string(p.Parameters) != metadata {
			t.Errorf("%s became %s, bridge %v (%v)", metadata, p.Parameters, c.Bridge, err)
		}
	}
}

// Whatever the fields are: no panic, no long run time, and the container gets an object.
func FuzzBridge(f *testing.F) {
	for _, seed := range []string{
		`{"image":"__tensor__0","mask":["__tensor__1",{"s":"x"}]}`, `{"a":{"b":{"s":[["x"],["y"]]}},"i":[1,[2]]}`,
		`{"image":["__tensor__0",["__tensor__1"]],"frame":{"image":"null"}, "":{"":[]}}`, `{"f":1e999,"i":[true],"b":{"0":[null]}}`,
		"{\"a\" : [ ] , \"b\":\t{ } }",
	} {
		f.Add([]byte(seed), 2)
	}
	specs := []tensor.Spec{
		spec("image", tensor.Float32, -1, 1), spec("mask", tensor.Float32, -1, -1), spec("a.b.s", tensor.Bytes, -1),
		spec("i", tensor.Int64, -1), spec("f", tensor.Float16, -1), spec("b.0", tensor.Bool, -1),
	}
	f.Fuzz(func(t *testing.T, metadata []byte, n int) {
		if shiva.ValidObject(metadata) != nil || len(metadata) == 0 {
			return
		}
		budgettest.Input(t)
		pool := tensor.NewPool(64 << 20)
		for used := range specs {
			c := &Call{Target: &Target{Spec: scheduler.Spec{Inputs: specs[used:]}}}
			c.Inputs = c.inputs[:0]
			p := Request{Bridge: InBridgeForm(metadata), Parameters: metadata}
			err := c.arrange(with(&p, numbered(n&7)), pool)
			if err == nil && p.Parameters != nil && !json.Valid(p.Parameters) {
				t.Errorf("%s: the container gets %s", metadata, p.Parameters)
			}
			if c.Close(); pool.InUse() != 0 {
				t.Fatalf("%s: %d bytes are out", metadata, pool.InUse())
			}
		}
	})
}
