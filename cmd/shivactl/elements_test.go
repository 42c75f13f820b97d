package main

import (
	"bytes"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

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

		{of(tensor.Float32, -1, 2), `[[1, 2], [3]]`, nil, nil, `the lists are not alike in length and depth, so they have no shape; input "x" takes FP32 [-1, 2] (-1 is any size), or one row [2]`},
		{of(tensor.Float32, -1, 2), `[[1, 2], 3]`, nil, nil, `the lists are not alike in length and depth, so they have no shape; input "x" takes FP32 [-1, 2] (-1 is any size), or one row [2]`},
		{of(tensor.Float32, -1), `[1, [2]]`, nil, nil, `the lists are not alike in length and depth, so they have no shape; input "x" takes FP32 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, -1), `[1, 300]`, nil, nil, `element [1]: expected a whole number from 0 to 255 (UINT8), got 300; input "x" takes UINT8 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, -1), `[1, "2"]`, nil, nil, `element [1]: expected a whole number from 0 to 255 (UINT8), got "2"; input "x" takes UINT8 [-1] (-1 is any size), or one row []`},
		{of(tensor.Uint8, 2), `[1, null]`, nil, nil, `element [1]: expected a whole number from 0 to 255 (UINT8), got null; input "x" takes UINT8 [2]`},
		{of(tensor.Uint8, 2), `[1, {}]`, nil, nil, `element [1]: expected a whole number from 0 to 255 (UINT8), got {}; input "x" takes UINT8 [2]`},
		{of(tensor.Uint8, 2), `[1, true]`, nil, nil, `element [1]: expected a whole number from 0 to 255 (UINT8), got true; input "x" takes UINT8 [2]`},
		{of(tensor.Bytes, 2), `["a", 1]`, nil, nil, `expected a string or nested lists of strings at byte 6, got "1]"; input "x" takes BYTES [2]`},
		{of(tensor.Complex64, 2), `[1, 2, 3]`, nil, nil, `expected each complex number as [real, imaginary], got an array of shape [3]; input "x" takes COMPLEX64 [2]`},
	} {
		a, err := jsonTensor([]byte(c.text), c.spec)
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
		"\n\n": "expected a value, but the text ends after 2 bytes", "[1,": "expected a value, but the text ends after 3 bytes",
		"[1] 2": `expected the end of the text at byte 4, got "2"`, "hello": `expected a value at byte 0, got "hello"`,
	} {
		if err := checkJSON([]byte(text)); err == nil || err.Error() != "it is not an image (PNG, JPEG), .npy or JSON: "+want {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := checkJSON(nil); err == nil || err.Error() != "it is empty" {
		t.Errorf("an empty file: %v", err)
	}
}

func FuzzJSONTensor(f *testing.F) {
	for _, s := range []string{`[[1, 2], [3, 4.5]]`, `[1, [2]]`, `[]`, `[[], []]`, `[["a"]]`, `[[1,2],[3,4]]`, `5`,
		`[null]`, `[true]`} {
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
		a, err := jsonTensor(text, spec{Spec: tensor.Spec{Name: "x", DType: d, Shape: tensor.Shape{-1, 2, 2}}})
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
