package rest

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/shivad/shivad/shiva/budgettest"
	"github.com/shivad/shivad/shiva/tensor"
)

// readData reads JSON data as a tensor of that dtype and shape.
func readData(t testing.TB, d tensor.DType, shape tensor.Shape, data string) (tensor.Tensor, error) {
	t.Helper()
	count, ok := shape.Elements()
	if !ok {
		t.Fatal("shape")
	}
	in := tensor.Tensor{DType: d, Shape: shape, Data: make([]byte, max(8, count*d.Size()))[:count*d.Size()]}
	text := newText([]byte(data), 20, 0)
	text.data(func() string { return "x" }, &in)
	return in, text.end()
}

func TestDataForms(t *testing.T) {
	for _, c := range []struct {
		d     tensor.DType
		shape tensor.Shape
		data  string
		want  any // the tensor's memory as this type
	}{
		{tensor.Int32, tensor.Shape{2, 3}, `[1,2,3,4,5,6]`, []int32{1, 2, 3, 4, 5, 6}},
		{tensor.Int32, tensor.Shape{2, 3}, "[ [1, 2,\n3 ]\t, [4,5,6] ] ", []int32{1, 2, 3, 4, 5, 6}},
		{tensor.Int32, tensor.Shape{1, 2, 1}, `[[[-1],[2]]]`, []int32{-1, 2}},
		{tensor.Int32, tensor.Shape{}, `[7]`, []int32{7}},
		{tensor.Int32, tensor.Shape{0}, `[]`, []int32{}},
		{tensor.Int32, tensor.Shape{2, 0}, `[[],[ ]]`, []int32{}},
		{tensor.Int32, tensor.Shape{0, 5}, `[]`, []int32{}},
		{tensor.Int8, tensor.Shape{3}, `[-128,127,-0]`, []int8{-128, 127, 0}},
		{tensor.Int16, tensor.Shape{2}, `[-32768,32767]`, []int16{-32768, 32767}},
		{tensor.Int64, tensor.Shape{2}, `[-9223372036854775808,9223372036854775807]`,
			[]int64{math.MinInt64, math.MaxInt64}},
		{tensor.Uint8, tensor.Shape{2}, `[0,255]`, []uint8{0, 255}},
		{tensor.Uint16, tensor.Shape{1}, `[65535]`, []uint16{65535}},
		{tensor.Uint32, tensor.Shape{1}, `[4294967295]`, []uint32{math.MaxUint32}},
		{tensor.Uint64, tensor.Shape{2}, `[18446744073709551615, 10000000000000000000]`,
			[]uint64{math.MaxUint64, 1e19}},
		{tensor.Bool, tensor.Shape{2}, `[true,false]`, []bool{true, false}},
		{tensor.Float32, tensor.Shape{5}, `[1, -2.5, 1e3, 0.1, 3.4028235e38]`,
			[]float32{1, -2.5, 1000, 0.1, math.MaxFloat32}},
		{tensor.Float64, tensor.Shape{3}, `[0.1, 1e-400, -1.7976931348623157E+308]`,
			[]float64{0.1, 0, -math.MaxFloat64}},
		{tensor.Float16, tensor.Shape{4}, `[1, 65504, 65519.99, 5.960464477539063e-8]`,
			[]uint16{0x3c00, 0x7bff, 0x7bff, 1}},
		{tensor.BFloat16, tensor.Shape{3}, `[1, -2, 0.1]`, []uint16{0x3f80, 0xc000, 0x3dcd}},
		{tensor.Bytes, tensor.Shape{2, 2}, `[["a",""],["\u00e9\n","😀"]]`, "\x01\x00\x00\x00a\x00\x00\x00\x00\x03\x00\x00\x00é\n\x04\x00\x00\x00😀"},
	} {
		got, err := readData(t, c.d, c.shape, c.data)
		if err != nil {
			t.Errorf("%s %s %s: %v", c.d, c.shape, c.data, err)
		} else if want := memory(c.want); string(got.Data) != want {
			t.Errorf("%s %s %s: %x, want %x", c.d, c.shape, c.data, got.Data, want)
		}
	}
}

// memory is a slice's memory.
func memory(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	var b []byte
	b, err := binary.Append(b, binary.NativeEndian, v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Every refusal names what was expected and what was received.
func TestDataRefusals(t *testing.T) {
	two := tensor.Shape{2}
	for _, c := range []struct {
		d     tensor.DType
		shape tensor.Shape
		data  string
		want  string
	}{
		{tensor.Int8, two, `[1,300]`, "invalid input: x: element 1: expected a whole number from -128 to 127 (INT8), got 300"},
		{tensor.Int8, two, `[-129,1]`, "element 0: expected a whole number from -128 to 127"},
		{tensor.Uint8, two, `[-1,1]`, "element 0: expected a whole number from 0 to 255"},
		{tensor.Uint64, two, `[1,18446744073709551616]`, "element 1: expected a whole number from 0 to 18446744073709551615"},
		{tensor.Int64, two, `[9223372036854775808,1]`, "from -9223372036854775808 to 9223372036854775807"},
		{tensor.Int32, two, `[1,2.5]`, "(INT32), got 2.5"},
		{tensor.Int32, two, `[1e-1,2]`, "got 1e-1"},
		{tensor.Int32, two, `[true,2]`, "got true"},
		{tensor.Float32, two, `[1,3.5e38]`, "element 1: expected a number of at most 3.4028235e+38 (FP32), got 3.5e38"},
		{tensor.Float32, two, `[1e999999999999999999999,1]`, "element 0: expected a number of at most"},
		{tensor.Float64, two, `[1e309,1]`, "at most 1.7976931e+308 (FP64)"},
		{tensor.Float16, two, `[65520,1]`, "at most 65504 (FP16), got 65520"},
		{tensor.BFloat16, two, `[3.4e38,1]`, "(BF16), got 3.4e38"},
		{tensor.Float32, two, `[1,"2"]`, `element 1: expected a number of at most 3.4028235e+38 (FP32), got "2"`},
		{tensor.Float32, two, `[null,1]`, "element 0: expected a number"},
		{tensor.Float32, two, `[true,1]`, "got true"},
		{tensor.Float32, two, `[NaN,1]`, `malformed message: JSON: expected a value at byte 1, got "NaN,1]"`},
		{tensor.Float32, two, `[1,]`, `malformed message: JSON: expected a value at byte 3, got "]"`},
		{tensor.Float32, two, `[1 2]`, "malformed message: JSON: expected a value at byte 3"},
		{tensor.Float32, two, `[01,2]`, "malformed message"},
		{tensor.Float32, two, `[1.,2]`, "malformed message"},
		{tensor.Float32, two, `[.5,2]`, "malformed message"},
		{tensor.Float32, two, `[+1,2]`, "malformed message"},
		{tensor.Float32, two, `[1e,2]`, "malformed message"},
		{tensor.Float32, two, `[1,2`, "malformed message"},
		{tensor.Float32, two, `[1,2] x`, "expected the end of the text"},
		{tensor.Float32, two, `5`, "x: data: expected an array, got 5"},
		{tensor.Float32, two, `{"a":1}`, "x: data: expected an array"},
		{tensor.Bool, two, `[2,true]`, "element 0: expected true or false (BOOL), got 2"},
		{tensor.Bytes, two, `["a",5]`, "element 1: expected a string (BYTES), got 5"},
		{tensor.Bytes, two, "[\"a\",\"\xff\"]", "not UTF-8"},
		{tensor.Bytes, two, `["a","\ud800"]`, "malformed message"},
		{tensor.Float32, tensor.Shape{2, 2}, `[1,2,3]`, "x: shape [2, 2] takes 4 elements, got 3"},
		{tensor.Float32, tensor.Shape{2, 2}, `[1,2,3,4,5]`, "x: shape [2, 2] takes 4 elements, got 5"},
		{tensor.Float32, tensor.Shape{2, 2}, `[]`, "takes 4 elements, got 0"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[1,2],[3]]`, "takes 4 elements, got 3"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[1,2,3],[4]]`, "4 elements, but the lengths of its arrays do not match shape [2, 2]"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[1],[2],[3],[4]]`, "the lengths of its arrays do not match shape [2, 2]"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[1,2],3,4]`, "mixes arrays and other values"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[[1,2]],[[3,4]]]`, "shape [2, 2] has 2 dimensions, but data is nested 3 deep"},
		{tensor.Float32, tensor.Shape{4}, `[[1,2],[3,4]]`, "shape [4] has 1 dimension, but data is nested 2 deep"},
		{tensor.Float32, tensor.Shape{1, 2, 2}, `[[1,2],[3,4]]`, "shape [1, 2, 2] has 3 dimensions, but data is nested 2 deep"},
		{tensor.Float32, tensor.Shape{2, 2}, `[[1,2],[3,"4"]]`, `element 3: expected a number of at most 3.4028235e+38 (FP32), got "4"`},
		{tensor.Float32, tensor.Shape{0}, `[1]`, "takes 0 elements, got 1"},
		{tensor.Float32, two, strings.Repeat("[", 100), "malformed message"},
	} {
		_, err := readData(t, c.d, c.shape, c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s %.40s:\ngot  %v\nwant %s", c.d, c.shape, c.data, err, c.want)
		}
	}
}

// FuzzData reads arrays as encoding/json does: the same texts, the same values, but for integers
// that are written as 3.0 or 3e0.
func FuzzData(f *testing.F) {
	for _, seed := range []string{`[1,2,3]`, `[-0.5e+3 , 1E400]`, `[]`, `[[1],[2]]`, `[18446744073709551615,1.0,null]`,
		`["a\u0041"]`, `[1,]`, `[0.0, 12e-1, -3e2]`, "[0.000000000000000000000000000000000000001]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data string) {
		budgettest.Input(t)
		fuzzOne[float32](t, tensor.Float32, data)
		fuzzOne[float64](t, tensor.Float64, data)
		fuzzOne[int8](t, tensor.Int8, data)
		fuzzOne[uint16](t, tensor.Uint16, data)
		fuzzOne[int32](t, tensor.Int32, data)
		fuzzOne[int64](t, tensor.Int64, data)
		fuzzOne[uint64](t, tensor.Uint64, data)
		// Nested to any depth, compared with a flat reading of the same text.
		for _, shape := range []tensor.Shape{{2, 2}, {1, 3, 1}, {0, 2}, {}} {
			got, err := readData(t, tensor.Int32, shape, data)
			if count, _ := shape.Elements(); err == nil {
				flat, err := readData(t, tensor.Int32, tensor.Shape{count},
					"["+strings.NewReplacer("[", "", "]", "").Replace(strings.ReplaceAll(data, "[]", ""))+"]")
				if count > 0 && (err != nil || string(flat.Data) != string(got.Data)) {
					t.Errorf("%q as %s: %x, flat %x %v", data, shape, got.Data, flat.Data, err)
				}
			}
		}
	})
}

func fuzzOne[T float32 | float64 | int8 | uint16 | int32 | int64 | uint64](t *testing.T, d tensor.DType, data string) {
	var loose []*T
	text := data
	if d != tensor.Float32 && d != tensor.Float64 {
		text = plainIntegers(data)
	}
	err := json.Unmarshal([]byte(text), &loose)
	values := make([]T, len(loose))
	for i, v := range loose {
		if v == nil {
			err = fmt.Errorf("null")
			continue
		}
		values[i] = *v
	}
	if !strings.HasPrefix(strings.TrimLeft(data, " \t\r\n"), "[") {
		err = fmt.Errorf("no array")
	}
	got, mine := readData(t, d, tensor.Shape{len(values)}, data)
	if (err == nil) != (mine == nil) {
		t.Fatalf("%q as %s: %v, encoding/json: %v", data, d, mine, err)
	}
	if err != nil {
		return
	}
	want := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(got.Data))
	if string(got.Data) != string(want) {
		t.Fatalf("%q as %s: %x, encoding/json: %x", data, d, got.Data, want)
	}
}

// plainIntegers writes the whole numbers of a flat array without fraction and exponent. Other text
// stays as it is.
func plainIntegers(data string) string {
	var elems []json.RawMessage
	if json.Unmarshal([]byte(data), &elems) != nil {
		return data
	}
	for i, e := range elems {
		mantissa, exponent, _ := strings.Cut(strings.ToLower(string(e)), "e")
		if n, err := strconv.Atoi(cmp.Or(exponent, "0")); err != nil || n > 400 || n < -400 {
			if strings.Trim(mantissa, "-0.") == "" { // beyond any integer, unless it is 0
				elems[i] = json.RawMessage("0")
			}
			continue
		}
		if r, ok := new(big.Rat).SetString(string(e)); ok && r.IsInt() {
			elems[i] = json.RawMessage(r.Num().String())
		}
	}
	text, err := json.Marshal(elems)
	if err != nil {
		return data
	}
	return string(text)
}

// imageText is the JSON of an image of 3x224x224 floats, as a client in Python writes it: the
// digits of a float64 that was a float32.
func imageText(bits int) []byte {
	random := rand.New(rand.NewPCG(3, 4))
	b := []byte{'['}
	for i := range 3 * 224 * 224 {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(random.Float32()), 'g', -1, bits)
	}
	return append(b, ']')
}

// BenchmarkData reads 150,528 floats. x-encoding/json is how many times faster that is than
// encoding/json into a slice, in the same run.
func BenchmarkData(b *testing.B) {
	for _, c := range []struct {
		name string
		bits int
	}{{"shortest", 32}, {"python", 64}} {
		b.Run(c.name, func(b *testing.B) {
			data := imageText(c.bits)
			in := tensor.Tensor{DType: tensor.Float32, Shape: tensor.Shape{3 * 224 * 224},
				Data: make([]byte, 4*3*224*224)}
			slice := make([]float32, 3*224*224)
			var theirs, ours time.Duration
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				start := time.Now()
				t := newText(data, 1, 0)
				if t.data(nil, &in); t.Err() != nil {
					b.Fatal(t.Err())
				}
				ours += time.Since(start)
				b.StopTimer()
				start = time.Now()
				if err := json.Unmarshal(data, &slice); err != nil {
					b.Fatal(err)
				}
				theirs += time.Since(start)
				b.StartTimer()
			}
			b.ReportMetric(float64(theirs)/float64(ours), "x-encoding/json")
		})
	}
}
