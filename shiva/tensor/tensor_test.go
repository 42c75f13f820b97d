package tensor

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/x448/float16"
)

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
}

func TestNewChecks(t *testing.T) {
	if _, err := New(Float32, Shape{2, 3}, make([]byte, 24)); err != nil {
		t.Error(err)
	}
	if _, err := New(Uint8, nil, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_, err := New(Float32, Shape{2, 3}, make([]byte, 23))
	wantError(t, err, "float32", "[2, 3]", "23")
	_, err = New(DType(16), Shape{2}, make([]byte, 2))
	wantError(t, err, "dtype(16)")
	_, err = New(Uint8, Shape{-1}, nil)
	wantError(t, err, "[-1]")
	// The elements fit an int, their bytes do not.
	_, err = New(LongDouble, Shape{1 << 59, 1 << 3}, nil)
	wantError(t, err, "longdouble")
}

func roundTrip[T Element](t *testing.T, d DType, values ...T) {
	t.Helper()
	x, err := FromSlice(Shape{len(values)}, values)
	if err != nil || x.DType != d {
		t.Errorf("%T: %s, %v; want %s", values, x.DType, err, d)
		return
	}
	got, err := Values[T](x)
	if err != nil || !slices.Equal(got, values) {
		t.Errorf("%T: %v, %v", values, got, err)
		return
	}
	if &got[0] != &values[0] {
		t.Errorf("%T: does not alias", values)
	}
}

func TestFromSliceAndValues(t *testing.T) {
	roundTrip(t, Bool, true, false)
	roundTrip(t, Int8, int8(-1), 2)
	roundTrip(t, Int16, int16(-1), 2)
	roundTrip(t, Int32, int32(-1), 2)
	roundTrip(t, Int64, int64(-1), 2)
	roundTrip(t, Uint8, uint8(255), 2)
	roundTrip(t, Uint16, uint16(1), 2)
	roundTrip(t, Uint32, uint32(1), 2)
	roundTrip(t, Uint64, uint64(1), 2)
	roundTrip(t, Float16, float16.Fromfloat32(1.5), float16.Fromfloat32(-2))
	roundTrip(t, Float32, float32(1.5), -2)
	roundTrip(t, Float64, 1.5, -2)
	roundTrip(t, Complex64, complex64(1+2i), -2)
	roundTrip(t, Complex128, 1+2i, -2)

	_, err := FromSlice(Shape{3}, []float32{1, 2})
	wantError(t, err, "float32", "[3]", "8")
	x, err := FromSlice(Shape{0, 4}, []float32{})
	if err != nil {
		t.Fatal(err)
	}
	if v, err := Values[float32](x); err != nil || len(v) != 0 {
		t.Errorf("no elements: %v, %v", v, err)
	}
	_, err = Values[float64](x)
	wantError(t, err, "float64", "float32")
	x.Data = make([]byte, 3)
	_, err = Values[float32](x)
	wantError(t, err, "got 3")
	_, err = Values[bool](Tensor{DType: Bool, Shape: Shape{3}, Data: []byte{1, 0, 2}})
	wantError(t, err, "element 2", "0x02")
	block := make([]byte, 17)
	_, err = Values[float64](Tensor{DType: Float64, Shape: Shape{2}, Data: block[1:]})
	wantError(t, err, "aligned")
}

func TestStrings(t *testing.T) {
	elems := []string{"a", "", "größer\x00", strings.Repeat("x", 300)}
	x, err := FromStrings(Shape{2, 2}, elems)
	if err != nil || x.DType != Bytes {
		t.Fatal(x.DType, err)
	}
	if want := []byte{1, 0, 0, 0, 'a', 0, 0, 0, 0, 9, 0, 0, 0}; !bytes.HasPrefix(x.Data, want) {
		t.Errorf("data begins with %x, want %x", x.Data[:len(want)], want)
	}
	if got, err := Strings(x); err != nil || !slices.Equal(got, elems) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := BytesElems(x); err != nil || &got[0][0] != &x.Data[4] || cap(got[0]) != 1 {
		t.Errorf("%q, %v: does not alias, or may be appended to", got, err)
	}
	_, err = FromStrings(Shape{3}, elems)
	wantError(t, err, "after the last of 3")
	_, err = FromStrings(Shape{5}, elems)
	wantError(t, err, "element 4 of 5", "0 bytes left")
	x.Data = x.Data[:len(x.Data)-1]
	_, err = Strings(x)
	wantError(t, err, "element 3 of 4", "announces 300", "299")
	_, err = BytesElems(Tensor{DType: Uint8, Shape: Shape{1}, Data: []byte{0}})
	wantError(t, err, "uint8")
	// The element claims 4 GiB: that takes no memory.
	_, err = New(Bytes, Shape{1 << 62}, binary.LittleEndian.AppendUint32(nil, math.MaxUint32))
	wantError(t, err, "4294967295")
}

func TestRows(t *testing.T) {
	x, _ := FromSlice(Shape{4, 2}, []int16{0, 1, 10, 11, 20, 21, 30, 31})
	x.Name = "x"
	for lo := range 5 {
		for hi := lo; hi <= 4; hi++ {
			view, err := x.RowSlice(lo, hi)
			if err != nil {
				t.Fatal(err)
			}
			v, err := Values[int16](view)
			if err != nil || view.Rows() != hi-lo || len(v) != 2*(hi-lo) || len(v) > 0 && v[0] != int16(10*lo) ||
				view.Name != "x" {
				t.Errorf("rows %d to %d are %v %s, %v", lo, hi, v, view.Shape, err)
			}
		}
	}
	if !x.Shape.Equal(Shape{4, 2}) {
		t.Errorf("the shape of the whole is now %s", x.Shape)
	}
	for _, r := range [][2]int{{-1, 2}, {2, 1}, {0, 5}, {5, 5}} {
		_, err := x.RowSlice(r[0], r[1])
		wantError(t, err, "[4, 2]")
	}
	_, err := Tensor{DType: Uint8, Data: []byte{1}}.RowSlice(0, 0)
	wantError(t, err, "[]")
	_, err = Tensor{DType: Uint8, Shape: Shape{4}, Data: []byte{1}}.RowSlice(1, 2)
	wantError(t, err, "1 bytes", "2")
	_, err = Tensor{DType: Uint8, Shape: Shape{4, -1}, Data: []byte{1}}.RowSlice(1, 2)
	wantError(t, err, "[4, -1]")
	if n := (Tensor{}).Rows(); n != 0 {
		t.Errorf("a scalar has %d rows", n)
	}
}

// TestCutAndConcat: what Cut takes apart Concat puts together, in any pieces, of fixed and of
// variable elements.
func TestCutAndConcat(t *testing.T) {
	pool := NewPool(0)
	numbers, _ := FromSlice(Shape{6, 2}, []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	words, _ := FromStrings(Shape{6, 2}, strings.Split("a,bb,,dddd,e,f,g,h,i,j,k,the last", ","))
	for _, x := range []Tensor{numbers, words} {
		for step := 1; step <= 6; step++ {
			var parts []Tensor
			for rest := x; rest.Rows() > 0; {
				head, tail, err := rest.Cut(min(step, rest.Rows()))
				if err != nil {
					t.Fatal(err)
				}
				if err := head.Check(); err != nil {
					t.Error(err)
				}
				view, err := x.RowSlice(6-rest.Rows(), 6-tail.Rows())
				if err != nil || !bytes.Equal(view.Data, head.Data) || !view.Shape.Equal(head.Shape) {
					t.Errorf("RowSlice gives %q, %v; Cut %q", view.Data, err, head.Data)
				}
				parts = append(parts, head)
				rest = tail
			}
			whole, err := Concat(parts, pool)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(whole.Data, x.Data) || !whole.Shape.Equal(x.Shape) || whole.DType != x.DType {
				t.Errorf("in steps of %d: %s %q", step, whole.Shape, whole.Data)
			}
			whole.Release()
		}
	}
	_, _, err := numbers.Cut(7)
	wantError(t, err, "7", "[6, 2]")
	_, _, err = Tensor{DType: Bytes, Shape: Shape{2}, Data: []byte{9}}.Cut(1)
	wantError(t, err, "element 0")

	_, err = Concat(nil, nil)
	wantError(t, err, "nothing")
	_, err = Concat([]Tensor{numbers, words}, nil)
	wantError(t, err, "part 1", "bytes", "float32")
	narrow, _ := FromSlice(Shape{6, 1}, make([]float32, 6))
	_, err = Concat([]Tensor{numbers, narrow}, nil)
	wantError(t, err, "part 1", "[6, 1]", "[6, 2]")
	_, err = Concat([]Tensor{{DType: Uint8, Shape: Shape{3}}}, nil)
	wantError(t, err, "part 0", "got 0")
	_, err = Concat([]Tensor{numbers}, NewPool(10))
	wantError(t, err, "budget")
	if pool.InUse() != 0 {
		t.Errorf("%d bytes in use", pool.InUse())
	}
}

func TestShapeFits(t *testing.T) {
	for _, tc := range []struct {
		s, declared Shape
		want        bool
	}{
		{Shape{}, Shape{}, true},
		{Shape{2, 3}, Shape{-1, 3}, true},
		{Shape{2, 3}, Shape{-1, -1}, true},
		{Shape{2, 3}, Shape{-1, 4}, false},
		{Shape{2, 3}, Shape{-1}, false},
		{Shape{2}, Shape{-1, 3}, false},
	} {
		if got := tc.s.Fits(tc.declared); got != tc.want {
			t.Errorf("%s fits %s: %t", tc.s, tc.declared, got)
		}
	}
}
