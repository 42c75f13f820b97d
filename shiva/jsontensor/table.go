package jsontensor

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/x448/float16"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A form is how the elements of a dtype are read and written.
type form struct {
	read  func(into *tensor.Tensor) jsonscan.Elements // into its memory; Bytes are appended to it
	write func(b, v []byte) []byte                    // one element, in host order; nil for Bytes
}

// forms has each dtype that JSON can express.
var forms = map[tensor.DType]form{
	tensor.Bool:  {reader(jsonscan.Bools), func(b, v []byte) []byte { return strconv.AppendBool(b, v[0] != 0) }},
	tensor.Int8:  {reader(jsonscan.Integers[int8]), func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int8(v[0])), 10) }},
	tensor.Int16: {reader(jsonscan.Integers[int16]), func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int16(host.Uint16(v))), 10) }},
	tensor.Int32: {reader(jsonscan.Integers[int32]), func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int32(host.Uint32(v))), 10) }},
	tensor.Int64: {reader(jsonscan.Integers[int64]), func(b, v []byte) []byte { return strconv.AppendInt(b, int64(host.Uint64(v)), 10) }},

	tensor.Uint8:  {reader(jsonscan.Integers[uint8]), func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(v[0]), 10) }},
	tensor.Uint16: {reader(jsonscan.Integers[uint16]), func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(host.Uint16(v)), 10) }},
	tensor.Uint32: {reader(jsonscan.Integers[uint32]), func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(host.Uint32(v)), 10) }},
	tensor.Uint64: {reader(jsonscan.Integers[uint64]), func(b, v []byte) []byte { return strconv.AppendUint(b, host.Uint64(v), 10) }},

	tensor.Float16: {reader(jsonscan.Float16s), func(b, v []byte) []byte {
		return AppendFloat(b, float64(float16.Frombits(host.Uint16(v)).Float32()), 32)
	}},
	tensor.BFloat16: {reader(jsonscan.BFloat16s), func(b, v []byte) []byte {
		return AppendFloat(b, float64(math.Float32frombits(uint32(host.Uint16(v))<<16)), 32)
	}},
	tensor.Float32: {reader(jsonscan.Float32s), func(b, v []byte) []byte {
		return AppendFloat(b, float64(math.Float32frombits(host.Uint32(v))), 32)
	}},
	tensor.Float64: {reader(jsonscan.Float64s), func(b, v []byte) []byte { return AppendFloat(b, math.Float64frombits(host.Uint64(v)), 64) }},

	tensor.Bytes: {read: func(t *tensor.Tensor) jsonscan.Elements {
		return jsonscan.Strings(func(text []byte) { t.Data = tensor.AppendElem(t.Data, text) })
	}},
}

var host = binary.NativeEndian

// reader reads elements into a tensor's memory as values of T.
func reader[T any](read func([]T) jsonscan.Elements) func(*tensor.Tensor) jsonscan.Elements {
	return func(t *tensor.Tensor) jsonscan.Elements {
		return read(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Data))), len(t.Data)/int(unsafe.Sizeof(*new(T)))))
	}
}

// Has reports whether JSON can express the elements of a dtype.
func Has(d tensor.DType) bool {
	_, ok := forms[d]
	return ok
}

// Elements returns what [jsonscan.Scanner.Array] needs to read data into a tensor's memory, whose
// size matches its shape and dtype; for Bytes it appends to that memory, which must have room. The
// dtype must be one that JSON has.
func Elements(into *tensor.Tensor) jsonscan.Elements { return forms[into.DType].read(into) }

// Writer returns a function that appends one element of a dtype, in host order, as JSON; nil for
// Bytes, and for dtypes that JSON lacks.
func Writer(d tensor.DType) func(b, element []byte) []byte { return forms[d].write }

// AppendFloat writes the shortest text that parses to the same float of that many bits. NaN and
// infinities, which JSON lacks, become null, as in JavaScript. -0 gets a fraction, since many
// clients would read it as an integer, which has no negative zero.
func AppendFloat(b []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return append(b, "null"...)
	case f == 0 && math.Signbit(f):
		return append(b, "-0.0"...)
	}
	format := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, bits)
}

// wanted describes an element of a dtype.
func wanted(d tensor.DType) string {
	low, high := "", ""
	switch d {
	case tensor.Bool:
		return "true or false (BOOL)"
	case tensor.Bytes:
		return "a string (BYTES)"
	case tensor.Float16:
		return "a number of at most 65504 (FP16)"
	case tensor.Float32, tensor.BFloat16, tensor.Float64:
		most := map[tensor.DType]float64{tensor.Float32: math.MaxFloat32, tensor.BFloat16: 0xFFp120, tensor.Float64: math.MaxFloat64}[d]
		return fmt.Sprintf("a number of at most %s (%s)", strconv.FormatFloat(most, 'g', 8, 64), d.V2())
	case tensor.Uint8, tensor.Uint16, tensor.Uint32, tensor.Uint64:
		low, high = "0", strconv.FormatUint(math.MaxUint64>>(64-8*d.Size()), 10)
	default:
		low, high = strconv.FormatInt(math.MinInt64>>(64-8*d.Size()), 10), strconv.FormatInt(math.MaxInt64>>(64-8*d.Size()), 10)
	}
	return fmt.Sprintf("a whole number from %s to %s (%s)", low, high, d.V2())
}
