package main

import (
	"bytes"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func TestAppendNumber(t *testing.T) {
	for _, c := range []struct {
		d    tensor.DType
		text string
		want any // nil: refused
	}{
		{tensor.Uint8, "0", uint64(0)}, {tensor.Uint8, "255", uint64(255)}, {tensor.Uint8, "256", nil}, {tensor.Uint8, "-1", nil}, {tensor.Uint8, "1.5", nil},
		{tensor.Uint8, "2.0", uint64(2)}, {tensor.Uint8, "1e2", uint64(100)}, {tensor.Uint8, "1e3", nil},
		{tensor.Int8, "-128", int64(-128)}, {tensor.Int8, "127", int64(127)}, {tensor.Int8, "128", nil}, {tensor.Int8, "-129", nil}, {tensor.Int8, "-3.0", int64(-3)},
		{tensor.Int16, "-32768", int64(-32768)}, {tensor.Int32, "2147483647", int64(2147483647)}, {tensor.Int32, "2147483648", nil},
		{tensor.Int64, "-9223372036854775808", int64(-1 << 63)}, {tensor.Int64, "9223372036854775807", int64(1<<63 - 1)}, {tensor.Int64, "9223372036854775808", nil},
		{tensor.Int64, "1e18", nil}, // beyond 2^53 only as written out
		{tensor.Uint64, "18446744073709551615", uint64(1<<64 - 1)}, {tensor.Uint64, "18446744073709551616", nil}, {tensor.Uint64, "-0", uint64(0)},
		{tensor.Bool, "1", true}, {tensor.Bool, "0", false}, {tensor.Bool, "2", nil},
		{tensor.Float16, "0.1", 0.0999755859375}, {tensor.Float16, "65504", 65504.0}, {tensor.Float16, "65536", nil},
		{tensor.Float32, "0.5", 0.5}, {tensor.Float32, "1e38", float64(float32(1e38))}, {tensor.Float32, "1e39", nil},
		{tensor.Float64, "0.1", 0.1}, {tensor.Float64, "1e400", nil}, {tensor.LongDouble, "-0.1", -0.1},
		{tensor.Complex64, "1", nil}, {tensor.Bytes, "1", nil},
	} {
		data, err := appendNumber(nil, c.d, c.text)
		if c.want == nil {
			if err == nil {
				t.Errorf("%s as %v is %x, want an error", c.text, c.d, data)
			}
			continue
		}
		if err != nil || len(data) != c.d.Size() {
			t.Errorf("%s as %v: %x, %v", c.text, c.d, data, err)
			continue
		}
		if got := element(tensor.Tensor{DType: c.d, Data: data}, 0); got != c.want {
			t.Errorf("%s as %v is %v, want %v", c.text, c.d, got, c.want)
		}
	}
}

func TestJSONTensor(t *testing.T) {
	of := func(d tensor.DType, shape ...int) spec {
		return spec{Spec: tensor.Spec{Name: "x", DType: d, Shape: shape}}
	}
	for _, c := range []struct {
		spec  spec
		text  string
		shape tensor.Shape
		want  []any // nil: refused
		err   string
	}{
		{of(tensor.Float32, -1, 2), `[[1, 2], [3, 4.5]]`, tensor.Shape{2, 2}, []any{1.0, 2.0, 3.0, 4.5}, ""},
		{of(tensor.Float32, -1, 2), `[1, 2]`, tensor.Shape{2}, []any{1.0, 2.0}, ""},
		// A flat list takes the declared shape.
		{of(tensor.Float32, -1, 2, 2), `[1, 2, 3, 4]`, tensor.Shape{2, 2}, []any{1.0, 2.0, 3.0, 4.0}, ""},
		{of(tensor.Float32, -1), `5`, tensor.Shape{}, []any{5.0}, ""},
		{of(tensor.BFloat16, -1), `5`, tensor.Shape{}, []any{5.0}, ""},
		{of(tensor.Bool, -1), `[true, false, 1]`, tensor.Shape{3}, []any{true, false, true}, ""},
		{of(tensor.Bytes, -1), `["a", ""]`, tensor.Shape{2}, []any{"a", ""}, ""},
		{of(tensor.Complex64, -1, 2), `[[1, 2], [3, 4]]`, tensor.Shape{2}, []any{1 + 2i, 3 + 4i}, ""},
		{of(tensor.Complex128, -1, 2), `[[[1, 2], [3, 4]]]`, tensor.Shape{1, 2}, []any{1 + 2i, 3 + 4i}, ""},
		{of(tensor.Float32, -1, 0), `[[], []]`, tensor.Shape{2, 0}, nil, "-"},

		{of(tensor.Float32, -1, 2), `[[1, 2], [3]]`, nil, nil, `list [1] has 1 elements where the first one has 2; input "x" takes FP32 [-1, 2] (-1 is any size), or one row [2]`},
		{of(tensor.Float32, -1, 2), `[[1, 2], 3]`, nil, nil, `element [1] is not as deep as the first one; input "x" takes FP32 [-1, 2] (-1 is any size), or one row [2]`},
		{of(tensor.Float32, -1), `[1, [2]]`, nil, nil, `element [1] is a list where the first one is not; input "x" takes FP32 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, -1), `[1, 300]`, nil, nil, `element [1]: 300 does not fit UINT8, whole numbers from 0 to 255; input "x" takes UINT8 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, -1), `[1, "2"]`, nil, nil, `element [1] is the string "2", not a value of UINT8; input "x" takes UINT8 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, 2), `[1, null]`, nil, nil, `element [1] is null, not a value of UINT8; input "x" takes UINT8 [2]`},
		{of(tensor.Uint8, 2), `[1, {}]`, nil, nil, `element [1] is an object, not a value of UINT8; input "x" takes UINT8 [2]`},
		{of(tensor.Uint8, 2), `[1, true]`, nil, nil, `element [1] is true, not a value of UINT8; input "x" takes UINT8 [2]`},
		{of(tensor.Bytes, 2), `["a", 1]`, nil, nil, `element [1] is not a string, not a value of BYTES; input "x" takes BYTES [2]`},
		{of(tensor.Complex64, 2), `[1, 2, 3]`, nil, nil, `element [0] is one number; a complex one is written [real, imaginary], not a value of COMPLEX64; input "x" takes COMPLEX64 [2]`},
	} {
		v, err := parseJSON([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		a, err := jsonTensor(v, c.spec)
		if c.err == "-" { // no elements, but a shape
			if err != nil || !a.Shape.Equal(c.shape) || len(a.Data) != 0 {
				t.Errorf("%s: %v %v", c.text, a, err)
			}
			continue
		}
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%s:\n got %v\nwant %s", c.text, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.text, err)
			continue
		}
		got := elements(t, a)
		if len(got) != len(c.want) || !a.Shape.Equal(c.shape) || a.DType != wire(c.spec) {
			t.Errorf("%s: %v %v %v", c.text, a.DType, a.Shape, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: element %d is %v, want %v", c.text, i, got[i], c.want[i])
			}
		}
	}
	for text, want := range map[string]string{
		"": "expected a value, but the text ends after 0 bytes", "[1,": "expected a value, but the text ends after 3 bytes",
		"[1] 2": `expected the end of the text at byte 4, got "2"`, "hello": `expected a value at byte 0, got "hello"`,
	} {
		if _, err := parseJSON([]byte(text)); err == nil || err.Error() != "it is not an image (PNG, JPEG), .npy or JSON: "+want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzJSONTensor(f *testing.F) {
	for _, s := range []string{`[[1, 2], [3, 4.5]]`, `[1, [2]]`, `[]`, `[[], []]`, `[["a"]]`, `[[1,2],[3,4]]`, `5`, `[null]`, `[true]`} {
		for d := range uint8(34) {
			f.Add([]byte(s), d)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, code byte) {
		budgettest.Input(t)
		d := tensor.DType(code)
		if !d.Valid() {
			return
		}
		v, err := parseJSON(text)
		if err != nil {
			return
		}
		a, err := jsonTensor(v, spec{Spec: tensor.Spec{Name: "x", DType: d, Shape: tensor.Shape{-1, 2, 2}}})
		if err != nil {
			return
		}
		if err := a.Check(); err != nil {
			t.Errorf("%s as %v: %v", text, d, err)
		}
		if d != tensor.Bytes && len(a.Data) > 16*len(text) {
			t.Errorf("%s as %v: %d bytes", bytes.TrimSpace(text), d, len(a.Data))
		}
	})
}
