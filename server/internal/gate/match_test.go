package gate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/containers/containertest"
	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/scheduler/setting"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

func spec(name string, d tensor.DType, shape ...int) tensor.Spec {
	return tensor.Spec{Name: name, DType: d, Shape: shape}
}

func zeros(name string, d tensor.DType, shape ...int) tensor.Tensor {
	n, _ := tensor.Shape(shape).Elements()
	t, err := tensor.New(d, shape, make([]byte, n*d.Size()))
	if err != nil {
		panic(err)
	}
	t.Name = name
	return t
}

func raw(text string) []byte { return []byte(text) }

func TestMatch(t *testing.T) {
	one := []tensor.Spec{spec("x", tensor.Float32, -1, 4)}
	two := []tensor.Spec{spec("x", tensor.Float32, -1, 4), spec("y", tensor.Int64, -1)}
	fixed := []tensor.Spec{spec("x", tensor.Float32, 4)}
	open := []tensor.Spec{spec("x", tensor.Uint8, -1, -1, -1, 3)}
	text := []tensor.Spec{spec("s", tensor.Bytes, -1)}
	pairs := []tensor.Spec{spec("s", tensor.Bytes, -1, 2)}
	mixed := []tensor.Spec{spec("s", tensor.Bytes, -1), spec("x", tensor.Float32, -1, 4), spec("t", tensor.Bytes, -1)}
	optional := func(name string) tensor.Spec {
		s := spec(name, tensor.Int64, -1)
		s.Optional = true
		return s
	}
	for _, tc := range []struct {
		name    string
		specs   []tensor.Spec
		tensors []tensor.Tensor
		p       Request
		want    string // rows squeeze shapes, or the error
	}{
		{"one row", one, []tensor.Tensor{zeros("", tensor.Float32, 4)}, Request{}, "1 true [1, 4]"},
		{"rows", one, []tensor.Tensor{zeros("", tensor.Float32, 3, 4)}, Request{}, "3 false [3, 4]"},
		{"one row that keeps its dimension", one, []tensor.Tensor{zeros("", tensor.Float32, 1, 4)}, Request{}, "1 false [1, 4]"},
		{"by position", two, []tensor.Tensor{zeros("", tensor.Float32, 2, 4), zeros("", tensor.Int64, 2)}, Request{}, "2 false [2, 4] [2]"},
		{"by name", two, []tensor.Tensor{zeros("y", tensor.Int64, 2), zeros("x", tensor.Float32, 2, 4)}, Request{}, "2 false [2, 4] [2]"},
		{"a scalar row", two, []tensor.Tensor{zeros("", tensor.Float32, 4), zeros("", tensor.Int64)}, Request{}, "1 true [1, 4] [1]"},
		{"one squeezed, one not", two, []tensor.Tensor{zeros("", tensor.Float32, 1, 4), zeros("", tensor.Int64)},
			Request{}, "1 false [1, 4] [1]"},
		{"no batch dimension", fixed, []tensor.Tensor{zeros("", tensor.Float32, 4)}, Request{}, "1 true [1, 4]"},
		{"open dimensions", open, []tensor.Tensor{zeros("", tensor.Uint8, 7, 5, 3)}, Request{}, "1 true [1, 7, 5, 3]"},
		{"text as bytes", text, []tensor.Tensor{zeros("", tensor.Uint8, 9)}, Request{}, "1 true [1]"},
		{"texts from metadata", text, nil, Request{Texts: raw(`{"s":["a","b"]}`)}, "2 false [2]"},
		{"one text from metadata", text, nil, Request{Texts: raw(`{"s":"a"}`)}, "1 true [1]"},
		{"a list of one", text, nil, Request{Texts: raw(`{"s":["a"]}`)}, "1 false [1]"},
		{"texts of two dimensions", pairs, nil, Request{Texts: raw(`{"s":[["a","b"],["c","d"]]}`)}, "2 false [2, 2]"},
		{"a row of texts", pairs, nil, Request{Texts: raw(`{"s":["a","b"]}`)}, "1 true [1, 2]"},
		{"texts beside a tensor", mixed, []tensor.Tensor{zeros("", tensor.Float32, 2, 4)},
			Request{Texts: raw(`{"t":["c","d"],"s":["a","b"]}`)}, "2 false [2] [2, 4] [2]"},

		{"a scalar text", []tensor.Spec{spec("s", tensor.Bytes)}, nil, Request{Texts: raw(`{"s":"hi"}`)}, "1 true [1]"},
		{"two texts for a scalar", []tensor.Spec{spec("s", tensor.Bytes)}, nil, Request{Texts: raw(`{"s":["a","b"]}`)}, "got bytes [2]"},
		{"texts of another shape", pairs, nil, Request{Texts: raw(`{"s":[["a"],["b"]]}`)}, "expected bytes [-1, 2] (-1: any size) or one row [2], got bytes [2, 1]"},
		{"texts of no shape", text, nil, Request{Texts: raw(`{"s":["a",["b"]]}`)}, "not alike"},
		{"texts of an unknown name", text, nil, Request{Texts: raw(`{"z":"a"}`)}, `no input "z"`},
		{"texts twice", text, nil, Request{Texts: raw(`{"s":"a","s":"b"}`)}, "given twice"},
		{"text for a number", one, nil, Request{Texts: raw(`{"x":"a"}`)}, `input "x" takes no text: expected float32`},
		{"old texts for a new model", text, nil, Request{Legacy: raw(`["a"]`)}, `takes texts by name in "__texts__"`},

		{"no inputs", nil, nil, Request{}, "1 true"},
		{"no inputs, and members", nil, nil, Request{Parameters: raw(`{"k":1}`)}, "1 true"},
		{"a tensor for no inputs", nil, []tensor.Tensor{zeros("", tensor.Float32, 4)}, Request{}, `model "m" takes no tensors, got 1`},
		{"a name for no inputs", nil, []tensor.Tensor{zeros("x", tensor.Float32, 4)}, Request{}, `no input "x"; model "m" takes no inputs`},
		{"a text for no inputs", nil, nil, Request{Texts: raw(`{"s":"a"}`)}, `no input "s"; model "m" takes no inputs`},
		{"old texts for no inputs", nil, nil, Request{Legacy: raw(`["a"]`)}, `metadata "inputs": model "m" takes no inputs`},

		{"none", one, nil, Request{}, `expected 1 tensor ("x" float32 [-1, 4]), got 0`},
		{"too many", one, []tensor.Tensor{zeros("", tensor.Float32, 4), zeros("", tensor.Float32, 4)}, Request{}, "expected 1 tensor"},
		{"too few, one is optional", append(slices.Clone(two), optional("z")),
			[]tensor.Tensor{zeros("", tensor.Float32, 4)}, Request{}, `expected 2 or 3 tensors ("x"`},
		{"too few, two are optional", append(slices.Clone(one), optional("y"), optional("z")), nil, Request{}, "expected 1 to 3 tensors"},
		{"too few before the last", append(append(slices.Clone(one), optional("z")), two[1]),
			[]tensor.Tensor{zeros("", tensor.Float32, 4)}, Request{}, "expected 3 tensors"},
		{"dtype", one, []tensor.Tensor{zeros("", tensor.Int32, 4)}, Request{}, `input "x": expected float32 [-1, 4] (-1: any size) or one row [4], got int32 [4]`},
		{"shape", one, []tensor.Tensor{zeros("", tensor.Float32, 5)}, Request{}, "got float32 [5]"},
		{"rank", one, []tensor.Tensor{zeros("", tensor.Float32, 1, 1, 4)}, Request{}, "got float32 [1, 1, 4]"},
		{"no rows", one, []tensor.Tensor{zeros("", tensor.Float32, 0, 4)}, Request{}, "0 false [0, 4]"},
		{"rows disagree", two, []tensor.Tensor{zeros("", tensor.Float32, 2, 4), zeros("", tensor.Int64, 3)}, Request{}, `input "y" has 3 rows, but input "x" has 2`},
		{"name missing", two, []tensor.Tensor{zeros("y", tensor.Int64, 2), zeros("z", tensor.Float32, 2, 4)}, Request{},
			`"x" is missing`},
		{"name unknown", one, []tensor.Tensor{zeros("x", tensor.Float32, 4), zeros("z", tensor.Float32, 4)}, Request{}, `no input "z"`},
		{"name twice", one, []tensor.Tensor{zeros("x", tensor.Float32, 4), zeros("x", tensor.Float32, 4)}, Request{}, "given twice"},
		{"fixed with rows", fixed, []tensor.Tensor{zeros("", tensor.Float32, 2, 4)}, Request{}, "expected float32 [4], got float32 [2, 4]"},
		{"no text", text, nil, Request{Texts: raw(`{"s":[]}`)}, "0 false [0]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Call{Target: &Target{ID: scheduler.ModelID{Name: "m", Version: "1"},
				Spec: scheduler.Spec{Inputs: tc.specs}}}
			c.Inputs = c.inputs[:0]
			p := tc.p
			err := c.arrange(with(&p, tc.tensors), nil)
			if err != nil {
				if !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("expected %q, got %v", tc.want, err)
				}
				return
			}
			got := fmt.Sprint(c.Rows, c.Squeeze)
			for _, in := range c.Inputs {
				got += " " + in.Shape.String()
				if in.Rows() != c.Rows {
					t.Errorf("an input has %d rows, the request %d", in.Rows(), c.Rows)
				}
			}
			if got != tc.want {
				t.Errorf("expected %s, got %s", tc.want, got)
			}
		})
	}
}

func TestMatchCasts(t *testing.T) {
	c := &Call{Target: &Target{Cast: setting.CastExact,
		Spec: scheduler.Spec{Inputs: []tensor.Spec{spec("x", tensor.Uint8, -1, 2)}}}}
	ask := func(values ...float32) error {
		in, _ := tensor.FromSlice(tensor.Shape{2}, values)
		c.Inputs = c.inputs[:0]
		return c.match([]tensor.Tensor{in}, nil, nil)
	}
	if err := ask(0, 255); err != nil || string(c.Inputs[0].Data) != "\x00\xff" || c.Inputs[0].DType != tensor.Uint8 {
		t.Errorf("0, 255: %v, %v", c.Inputs, err)
	}
	for _, bad := range []float32{0.5, 256, -1} {
		if err := ask(1, bad); !errors.Is(err, scheduler.ErrInvalidInput) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%v: expected ErrInvalidInput that names the input, got %v", bad, err)
		}
	}
}

// An input of another dtype is refused with a cure, and cast by the rule that the model has.
func TestMatchCures(t *testing.T) {
	image, _ := tensor.FromSlice(tensor.Shape{2}, []float64{10. / 255, 1})
	weights, _ := tensor.FromSlice(tensor.Shape{2}, []float32{0.1, 1})
	mask, _ := tensor.FromSlice(tensor.Shape{2}, []uint8{0, 255})
	pixels, _ := tensor.FromSlice(tensor.Shape{2}, []uint8{7, 255})
	for _, c := range []struct {
		input tensor.Tensor
		dtype tensor.DType
		want  [3]string // for each rule: the element as JSON, or a part of the error
	}{
		{image, tensor.Float32, [3]string{`.astype("float32")), or have cast = true`, "0.039215688", "0.039215688"}},
		{weights, tensor.Float16,
			[3]string{`.astype("float16")), or have cast = "nearest"`,
				`which no float16 is equal to; the setting cast = "nearest"`, "0.099975586"}},
		{mask, tensor.Bool,
			[3]string{`.astype("bool")), or have cast = "nearest"`,
				`element 1 is the uint8 255, which no bool is equal to; the setting cast = "nearest"`, "false"}},
		{pixels, tensor.Float32,
			[3]string{`got uint8 [2]; convert it before it is sent (numpy: .astype("float32")), or have cast = true`,
				"7", "7"}},
		{image, tensor.Uint8, [3]string{`.astype("uint8")), or have cast = true`, "which no uint8 is equal to", "which no uint8 is equal to"}},
	} {
		for rule, want := range c.want {
			k := &Call{Target: &Target{Cast: setting.Cast(rule),
				Spec: scheduler.Spec{Inputs: []tensor.Spec{spec("x", c.dtype, -1, 2)}}}}
			k.Inputs = k.inputs[:0]
			got := ""
			if err := k.match([]tensor.Tensor{c.input}, nil, nil); err != nil {
				if got = err.Error(); !errors.Is(err, scheduler.ErrInvalidInput) {
					t.Errorf("%v is not the sender's fault", err)
				}
			} else {
				got = string(jsontensor.Writer(c.dtype)(nil, k.Inputs[0].Data[:c.dtype.Size()]))
			}
			if !strings.Contains(got, want) || len(want) < 12 && got != want {
				t.Errorf("%s to %s by %s: %s, want %s", c.input.DType, c.dtype, setting.Cast(rule), got, want)
			}
		}
	}
}

// Memory for converted inputs counts as payload, and a lack of it is not the request's fault.
func TestMatchTakesMemoryOfThePool(t *testing.T) {
	cast := scheduler.Spec{Inputs: []tensor.Spec{spec("x", tensor.Float64, -1)}}
	text := scheduler.Spec{Inputs: []tensor.Spec{spec("x", tensor.Bytes, -1)}}
	bytes := scheduler.Spec{Inputs: []tensor.Spec{spec("x", tensor.Uint8, -1, -1)}}
	oldText, oldCast := containertest.OldSpec(tensor.Bytes, tensor.Bytes),
		containertest.OldSpec(tensor.Float64, tensor.Bytes)
	large := []tensor.Tensor{zeros("", tensor.Uint8, 1<<20)}
	long := strings.Repeat("a", 1<<20)
	for name, tc := range map[string]struct {
		spec    scheduler.Spec
		tensors []tensor.Tensor
		p       Request
	}{
		"cast":               {spec: cast, tensors: large},
		"text":               {spec: text, tensors: large},
		"metadata":           {spec: text, p: Request{Texts: fmt.Appendf(nil, `{"x":"%s"}`, long)}},
		"field":              {spec: text, p: Request{Parameters: fmt.Appendf(nil, `{"x":"%s"}`, long)}},
		"numbers":            {spec: cast, p: Request{Parameters: fmt.Appendf(nil, `{"x":[%s0]}`, strings.Repeat("0,", 1<<17))}},
		"fields":             {spec: bytes, tensors: large, p: Request{Bridge: true, Parameters: raw(`{"x":["__tensor__0"]}`)}},
		"legacy cast":        {spec: oldCast, tensors: large},
		"legacy text":        {spec: oldText, tensors: large},
		"legacy in metadata": {spec: oldText, p: Request{Legacy: fmt.Appendf(nil, `["%s"]`, long)}},
	} {
		match := func(pool *tensor.Pool) (*Call, error) {
			c := &Call{Target: &Target{Spec: tc.spec, Cast: setting.CastExact}}
			c.Inputs = c.inputs[:0]
			p := tc.p
			return c, c.arrange(with(&p, tc.tensors), pool)
		}
		if _, err := match(tensor.NewPool(1 << 10)); fault.Of(err).Type != shiva.Overloaded {
			t.Errorf("%s without memory: %v", name, err)
		}
		pool := tensor.NewPool(1 << 30)
		c, err := match(pool)
		if err != nil || pool.InUse() < 1<<20 {
			t.Errorf("%s: %d bytes are counted, error %v", name, pool.InUse(), err)
		}
		if c.Close(); pool.InUse() != 0 {
			t.Errorf("%s: %d bytes are still out", name, pool.InUse())
		}
	}
}

func TestMatchAdapted(t *testing.T) {
	numbers := containertest.OldSpec(tensor.Float64, tensor.Bytes)
	texts := containertest.OldSpec(tensor.Bytes, tensor.Bytes)
	for _, tc := range []struct {
		name    string
		spec    scheduler.Spec
		tensors []tensor.Tensor
		p       Request
		want    string
	}{
		{"any shape is a row", numbers, []tensor.Tensor{zeros("", tensor.Float64, 2, 3)}, Request{}, "1 true [1, 6]"},
		{"a scalar is a row", numbers, []tensor.Tensor{zeros("", tensor.Float64)}, Request{}, "1 true [1, 1]"},
		{"an empty row", numbers, []tensor.Tensor{zeros("", tensor.Float64, 0)}, Request{}, "1 true [1, 0]"},
		{"batch", numbers, []tensor.Tensor{zeros("", tensor.Float64, 2, 3)},
			Request{Values: parameter.Values{Batch: true}}, "2 false [2, 3]"},
		{"batch of nothing", numbers, []tensor.Tensor{zeros("", tensor.Float64, 0, 3)},
			Request{Values: parameter.Values{Batch: true}}, "0 false [0, 0]"},
		{"two tensors", numbers, []tensor.Tensor{zeros("", tensor.Float64), zeros("", tensor.Float64)}, Request{}, "got 2"},
		{"dtype", numbers, []tensor.Tensor{zeros("", tensor.Float32, 3)}, Request{}, "expected float64 [-1, -1] (-1: any size) or one row [-1], got float32 [3]"},
		{"text", texts, []tensor.Tensor{zeros("", tensor.Uint8, 3)}, Request{}, "1 true [1]"},
		{"two texts", texts, []tensor.Tensor{zeros("", tensor.Uint8, 3), zeros("", tensor.Uint8, 2)}, Request{}, "2 false [2]"},
		{"text in metadata", texts, nil, Request{Texts: raw(`{"input":"a"}`)}, "1 true [1]"},
		{"texts in metadata", texts, nil, Request{Texts: raw(`{"input":["a","b"]}`)}, "2 false [2]"},
		{"the old form", texts, nil, Request{Legacy: raw(`"a"`)}, "1 true [1]"},
		{"the old form of many", texts, nil, Request{Legacy: raw(`["a","b"]`)}, "2 false [2]"},
		{"the old form has no depth", texts, nil, Request{Legacy: raw(`[["a"]]`)}, "expected a string or a list of strings: got lists of shape [1, 1]"},
		{"the old form is of strings", texts, nil, Request{Legacy: raw(`[5]`)}, "expected a string or a list of strings"},
		{"texts have no depth here", texts, nil, Request{Texts: raw(`{"input":[["a"]]}`)}, "got lists of shape [1, 1]"},
		{"text twice", texts, []tensor.Tensor{zeros("", tensor.Uint8, 3)}, Request{Texts: raw(`{"input":"a"}`)}, "given twice"},
		{"text for numbers", numbers, nil, Request{Texts: raw(`{"input":"a"}`)}, "takes no text"},
		{"no text", texts, nil, Request{}, "no text"},
		{"not text", texts, []tensor.Tensor{zeros("", tensor.Int32, 3)}, Request{}, "expected text"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Call{Target: &Target{Spec: tc.spec}}
			c.Inputs = c.inputs[:0]
			err := c.arrange(with(&tc.p, tc.tensors), nil)
			got := fmt.Sprint(err)
			if err == nil {
				got = fmt.Sprint(c.Rows, c.Squeeze, c.Inputs[0].Shape)
			} else if !errors.Is(err, scheduler.ErrInvalidInput) {
				t.Errorf("not an invalid input: %v", err)
			}
			if !strings.Contains(got, tc.want) {
				t.Errorf("expected %s, got %s", tc.want, got)
			}
		})
	}
}

// with returns r with these inputs.
func with(r *Request, inputs []tensor.Tensor) *Request {
	r.Inputs = inputs
	return r
}
