package gate

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

func TestFromJSON(t *testing.T) {
	for _, tc := range []struct {
		text  string
		dtype tensor.DType
		want  string
	}{
		{`3`, tensor.Int64, "int64 [] [3 0 0 0 0 0 0 0]"},
		{`[1,2]`, tensor.Uint8, "uint8 [2] [1 2]"},
		{`[[1],[2]]`, tensor.Uint8, "uint8 [2, 1] [1 2]"},
		{`[9007199254740993,true,-1e3,-0]`, tensor.Int64, "int64 [4] [1 0 0 0 0 0 32 0 1 0 0 0 0 0 0 0 24 252 255 255 255 255 255 255 0 0 0 0 0 0 0 0]"},
		{`[18446744073709551615,1.0,-0]`, tensor.Uint64, "uint64 [3] [255 255 255 255 255 255 255 255 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0]"},
		{`-9223372036854775808`, tensor.Int64, "int64 [] [0 0 0 0 0 0 0 128]"},
		{`-9223372036854775809`, tensor.Int64, "error"},
		{`18446744073709551616`, tensor.Uint64, "error"},
		{`-1`, tensor.Uint64, "error"},
		{`1.5`, tensor.Uint64, "error"},
		{`9007199254740993.0`, tensor.Int64, "error"},
		{`1e16`, tensor.Int64, "error"},
		{`1e999`, tensor.Float64, "error"},
		{`[true,false]`, tensor.Bool, "bool [2] [1 0]"},
		{`0.1`, tensor.Float32, "float32 [] [205 204 204 61]"},
		{`0.5`, tensor.Float16, "float16 [] [0 56]"},
		{`["a",""]`, tensor.Bytes, "bytes [2] [1 0 0 0 97 0 0 0 0]"},
		{`[]`, tensor.Float32, "float32 [0] []"},
		{`300`, tensor.Uint8, "error"},
		{`1.5`, tensor.Int32, "error"},
		{`1e300`, tensor.Float32, "error"},
		{`1e300`, tensor.Float16, "error"},
		{`"a"`, tensor.Float32, "error"},
		{`1`, tensor.Bytes, "error"},
		{`[[1],[2,3]]`, tensor.Uint8, "error"},
		{`[[1],2]`, tensor.Uint8, "error"},
		{`[1,[2]]`, tensor.Uint8, "error"},
		{`{}`, tensor.Uint8, "error"},
		{`null`, tensor.Uint8, "error"},
		{`null`, tensor.Int64, "error"},
	} {
		v, err := DecodeJSON([]byte(tc.text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := FromJSON(v, tc.dtype)
		s := fmt.Sprintf("%s %s %d", got.DType, got.Shape, got.Data)
		if err != nil {
			s = "error"
		}
		if s != tc.want {
			t.Errorf("%s as %s: got %s (%v), expected %s", tc.text, tc.dtype, s, err, tc.want)
		}
	}
}

func TestDecodeJSON(t *testing.T) {
	for _, text := range []string{``, `1 2`, `[1`, `{} x`} {
		if v, err := DecodeJSON([]byte(text)); err == nil {
			t.Errorf("%q is %v", text, v)
		}
	}
}

// TestFromJSONTakesWhatIsThere: two short lists that pretend to be a matrix of a billion elements
// do not allocate memory for one.
func TestFromJSONTakesWhatIsThere(t *testing.T) {
	const n = 1 << 18
	wide := make([]any, n)
	for i := range wide {
		wide[i] = 0.
	}
	tall := slices.Clone(wide)
	tall[0] = wide
	if _, err := FromJSON(tall, tensor.Float32); err == nil || !strings.Contains(err.Error(), "lists of different") {
		t.Errorf("got %v", err)
	}
}
