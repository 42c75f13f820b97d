package main

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

func npyFile(t testing.TB, name string) []byte {
	t.Helper()
	file, err := os.ReadFile("testdata/npy/" + name + ".npy")
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// elements are all elements of a tensor.
func elements(t *testing.T, a tensor.Tensor) []any {
	t.Helper()
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	var out []any
	if a.DType == tensor.Bytes {
		texts, err := tensor.Strings(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range texts {
			out = append(out, s)
		}
		return out
	}
	n, _ := a.Shape.Elements()
	for i := range n {
		out = append(out, element(a, i))
	}
	return out
}

// Files written by numpy; testdata/npy/make.py has their contents.
func TestReadNPY(t *testing.T) {
	signed := []any{int64(-2), int64(-1), int64(0), int64(1), int64(2), int64(3)}
	unsigned := []any{uint64(0), uint64(1), uint64(2), uint64(3), uint64(4), uint64(5)}
	real := []any{-2.0, -1.0, 0.0, 1.0, 2.0, 3.0}
	complexes := []any{-2 + 1i, -1 + 1i, 0 + 1i, 1 + 1i, 2 + 1i, 3 + 1i}
	text := []any{"a", "bé", "日本語", "", "x", "😀"}
	for _, c := range []struct {
		names string
		dtype tensor.DType
		shape tensor.Shape
		want  []any
	}{
		{"i1", tensor.Int8, tensor.Shape{2, 3}, signed},
		{"i2le i2be", tensor.Int16, tensor.Shape{2, 3}, signed},
		{"i4le i4be", tensor.Int32, tensor.Shape{2, 3}, signed},
		{"i8le i8be", tensor.Int64, tensor.Shape{2, 3}, signed},
		{"u1", tensor.Uint8, tensor.Shape{2, 3}, unsigned},
		{"u2le u2be", tensor.Uint16, tensor.Shape{2, 3}, unsigned},
		{"u4le u4be", tensor.Uint32, tensor.Shape{2, 3}, unsigned},
		{"u8le u8be", tensor.Uint64, tensor.Shape{2, 3}, unsigned},
		{"f2le f2be", tensor.Float16, tensor.Shape{2, 3}, real},
		{"f4le f4be", tensor.Float32, tensor.Shape{2, 3}, real},
		{"f8le f8be", tensor.Float64, tensor.Shape{2, 3}, real},
		{"f16le f16be", tensor.LongDouble, tensor.Shape{2, 3}, real},
		{"c8le c8be", tensor.Complex64, tensor.Shape{2, 3}, complexes},
		{"c16le c16be", tensor.Complex128, tensor.Shape{2, 3}, complexes},
		{"b1", tensor.Bool, tensor.Shape{2, 3}, []any{true, false, true, false, false, true}},
		{"S3", tensor.Bytes, tensor.Shape{2, 3}, []any{"a", "bc", "def", "", "x", "yz"}},
		{"U3le U3be", tensor.Bytes, tensor.Shape{2, 3}, text},
		{"scalar", tensor.Uint8, tensor.Shape{}, []any{uint64(7)}},
		{"empty", tensor.Float32, tensor.Shape{0, 4}, nil},
		{"version2 version3", tensor.Uint8, tensor.Shape{3}, []any{uint64(0), uint64(1), uint64(2)}},
	} {
		for _, name := range strings.Fields(c.names) {
			a, err := readNPY(npyFile(t, name))
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got := elements(t, a); a.DType != c.dtype || !a.Shape.Equal(c.shape) || !reflect.DeepEqual(got, c.want) {
				t.Errorf("%s: %v %v %v, want %v %v %v", name, a.DType, a.Shape, got, c.dtype, c.shape, c.want)
			}
		}
	}
}

func TestReadNPYFortranOrder(t *testing.T) {
	a, err := readNPY(npyFile(t, "fortran"))
	if err != nil {
		t.Fatal(err)
	}
	if !a.Shape.Equal(tensor.Shape{2, 3, 4}) {
		t.Fatalf("shape %v", a.Shape)
	}
	for i, v := range elements(t, a) {
		if v != int64(i) {
			t.Fatalf("element %d is %v", i, v)
		}
	}
}

func TestReadNPYRefuses(t *testing.T) {
	good := string(npyFile(t, "f4le"))
	for _, c := range []struct{ name, file, want string }{
		{"object", string(npyFile(t, "object")), "Python objects are not read"},
		{"record", string(npyFile(t, "record")), "an array of records"},
		{"date", string(npyFile(t, "date")), "dates are not numbers"},
		{"complex long double", string(npyFile(t, "clongdouble")), "no tensor has it"},
		{"empty", "", "not a .npy file"},
		{"magic only", npyMagic, "not a .npy file"},
		{"version", npyMagic + "\x09\x00" + good[8:], "version 9"},
		{"cut in the header", good[:20], "cut off in its header"},
		{"cut in the elements", good[:len(good)-1], "23 bytes of elements; its header announces [2, 3] of <f4, which is 4 each"},
		{"too long", good + "x", "25 bytes of elements"},
		{"no shape", strings.Replace(good, "'shape'", "'shap3'", 1), "no fortran_order or shape"},
		{"odd shape", strings.Replace(good, "(2, 3)", "(2 3) ", 1), "shape (2 3)"},
		{"odd type", strings.Replace(good, "<f4", "<f7", 1), `elements of type "<f7": not a type of numpy`},
		{"odd order", strings.Replace(good, "<f4", "*f4", 1), `elements of type "*f4": not a type of numpy`},
	} {
		if _, err := readNPY([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	huge := strings.Replace(good, "(2, 3), }", "(4294967296, 4294967296, 4294967296), }", 1)
	if _, err := readNPY([]byte(huge)); err == nil {
		t.Error("a shape whose product overflows was accepted")
	}
}

func FuzzReadNPY(f *testing.F) {
	files, err := filepath.Glob("testdata/npy/*.npy")
	if err != nil || len(files) < 30 {
		f.Fatal(files, err)
	}
	for _, name := range files {
		file, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		budgettest.Input(t)
		a, err := readNPY(file)
		if err != nil {
			return
		}
		if err := a.Check(); err != nil {
			t.Fatal(err)
		}
		if len(a.Data) > 16*len(file)+16 {
			t.Errorf("%d bytes of a file of %d", len(a.Data), len(file))
		}
	})
}

func TestExtended(t *testing.T) {
	for _, f := range []float64{0, 1, -1, 0.1, -math.Pi, math.MaxFloat64, math.SmallestNonzeroFloat64,
		3 * math.SmallestNonzeroFloat64, 0x1p-1022, math.Inf(1), math.Inf(-1), 1e-310} {
		if got := fromExtended(toExtended(f)); got != f {
			t.Errorf("%v comes back as %v", f, got)
		}
	}
	if m, e := toExtended(math.NaN()); !math.IsNaN(fromExtended(m, e)) {
		t.Error("NaN comes back as a number")
	}
	if m, e := toExtended(math.Copysign(0, -1)); m != 0 || e != 0x8000 {
		t.Error("-0 lost its sign")
	}
	if m, e := toExtended(1); m != 1<<63 || e != 16383 { // the x87 format
		t.Errorf("1 is %x %x", m, e)
	}
}
