package tensor

import (
	"strings"
	"testing"
)

// TestDTypes: every number is a dtype with all properties, or not a dtype, with none.
func TestDTypes(t *testing.T) {
	sizes := map[DType]int{
		Float16: 2, Float32: 4, Float64: 8, LongDouble: 16, Complex64: 8, Complex128: 16, BFloat16: 2, Bytes: 0,
		Bool:  1,
		Uint8: 1, Uint16: 2, Uint32: 4, Uint64: 8, Int8: 1, Int16: 2, Int32: 4, Int64: 8,
	}
	for n := range 256 {
		d := DType(n)
		size, known := sizes[d]
		if d.Valid() != known || d.Size() != size {
			t.Errorf("%d: valid %t, size %d; want %t, %d", n, d.Valid(), d.Size(), known, size)
		}
		if !known {
			if d.OnWire() || d.V2() != "" || d.SwapWidth() != 1 || !strings.HasPrefix(d.String(), "dtype(") {
				t.Errorf("%d is no dtype and says on wire %t, %q, %d, %q", n, d.OnWire(), d.V2(), d.SwapWidth(), d)
			}
			continue
		}
		if back, ok := FromV2(d.V2()); !ok || back != d {
			t.Errorf("%s: V2 name %q goes back to %s, %t", d, d.V2(), back, ok)
		}
		if w := d.SwapWidth(); d != Bytes && (d.Size()%w != 0 || w < d.Size() && d != Complex64 && d != Complex128) {
			t.Errorf("%s: swap width %d of %d bytes", d, w, d.Size())
		}
	}
	for _, name := range []string{"", "fp32", "FP8", "float32"} {
		if d, ok := FromV2(name); ok {
			t.Errorf("V2 name %q is taken for %s", name, d)
		}
	}
}

// TestFromWire pins the codes of the protocol: 2 and 10 have twins, 16 and all above 17 are unused.
func TestFromWire(t *testing.T) {
	want := []string{
		0: "float16", 1: "float32", 2: "float64", 3: "uint8", 4: "int8", 5: "uint16", 6: "int16", 7: "uint32", 8: "int32",
		9: "uint64", 10: "int64", 11: "float64", 12: "longdouble", 13: "int64", 14: "complex64", 15: "complex128", 17: "bool",
	}
	for code := range 256 {
		d, ok := FromWire(byte(code))
		name := ""
		if code < len(want) {
			name = want[code]
		}
		if ok != (name != "") || ok && (d.String() != name || !d.OnWire()) {
			t.Errorf("code %d is %s, %t; want %q", code, d, ok, name)
		}
	}
	if BFloat16.OnWire() || Bytes.OnWire() {
		t.Error("bfloat16 and bytes have no code")
	}
}

func TestShapeElements(t *testing.T) {
	const big = 1 << 31
	for _, tt := range []struct {
		shape Shape
		n     int
		ok    bool
	}{
		{nil, 1, true},
		{Shape{}, 1, true},
		{Shape{7}, 7, true},
		{Shape{2, 3, 4}, 24, true},
		{Shape{2, 0, 4}, 0, true},
		{Shape{-1}, 0, false},
		{Shape{0, -1}, 0, false},
		{Shape{-2, -2}, 0, false},
		{Shape{big, big}, big * big, true},
		{Shape{big, big, 2}, 0, false},
		{Shape{big, big, 4}, 0, false}, // wraps to 0
		{Shape{0, big, big, big}, 0, false},
		{Shape{1<<63 - 1}, 1<<63 - 1, true},
		{Shape{1<<63 - 1, 2}, 0, false},
	} {
		if n, ok := tt.shape.Elements(); n != tt.n || ok != tt.ok {
			t.Errorf("%s has %d, %t elements; want %d, %t", tt.shape, n, ok, tt.n, tt.ok)
		}
	}
}

func TestShapeString(t *testing.T) {
	for want, s := range map[string]Shape{"[]": nil, "[3]": {3}, "[-1, 28, 28]": {-1, 28, 28}} {
		if got := s.String(); got != want {
			t.Errorf("%#v is written %q, want %q", s, got, want)
		}
	}
	if !(Shape{1, 2}).Equal(Shape{1, 2}) || (Shape{1, 2}).Equal(Shape{2, 1}) || (Shape{1}).Equal(Shape{1, 1}) {
		t.Error("Equal is wrong")
	}
}
