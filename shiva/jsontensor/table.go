package jsontensor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/tensor"
)

// A form is how the elements of a dtype are read and written.
type form struct {
	read  func(into *tensor.Tensor) jsonscan.Elements // into its memory; Bytes are appended to it
	write func(b, v []byte) []byte                    // one element, in host order; nil for Bytes
}

// forms has each dtype that JSON can express. Shorter floats than these follow by themselves.
var forms = map[tensor.DType]form{
	tensor.Bool: {reader(jsonscan.Bools), func(b, v []byte) []byte { return strconv.AppendBool(b, v[0] != 0) }},
	tensor.Int8: {reader(jsonscan.Integers[int8]),
		func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int8(v[0])), 10) }},
	tensor.Int16: {reader(jsonscan.Integers[int16]),
		func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int16(host.Uint16(v))), 10) }},
	tensor.Int32: {reader(jsonscan.Integers[int32]),
		func(b, v []byte) []byte { return strconv.AppendInt(b, int64(int32(host.Uint32(v))), 10) }},
	tensor.Int64: {reader(jsonscan.Integers[int64]),
		func(b, v []byte) []byte { return strconv.AppendInt(b, int64(host.Uint64(v)), 10) }},

	tensor.Uint8: {reader(jsonscan.Integers[uint8]),
		func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(v[0]), 10) }},
	tensor.Uint16: {reader(jsonscan.Integers[uint16]),
		func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(host.Uint16(v)), 10) }},
	tensor.Uint32: {reader(jsonscan.Integers[uint32]),
		func(b, v []byte) []byte { return strconv.AppendUint(b, uint64(host.Uint32(v)), 10) }},
	tensor.Uint64: {reader(jsonscan.Integers[uint64]),
		func(b, v []byte) []byte { return strconv.AppendUint(b, host.Uint64(v), 10) }},

	tensor.Float32: {reader(jsonscan.Float32s), func(b, v []byte) []byte {
		return AppendFloat(b, float64(math.Float32frombits(host.Uint32(v))), 32)
	}},
	tensor.Float64: {reader(jsonscan.Float64s),
		func(b, v []byte) []byte { return AppendFloat(b, math.Float64frombits(host.Uint64(v)), 64) }},

	tensor.Bytes: {read: func(t *tensor.Tensor) jsonscan.Elements {
		return jsonscan.Strings(func(text []byte) { t.Data = tensor.AppendElem(t.Data, text) })
	}},
}

func init() {
	for d := range tensor.DTypes() {
		if _, has := forms[d]; d.IsFloat() && !has {
			forms[d] = formOf(d)
		}
	}
}

// formOf is the form of a float of less than 32 bits.
func formOf(d tensor.DType) form {
	f := form{write: func(b, v []byte) []byte { return AppendFloat(b, d.Float(v), 32) }}
	if d.Size() == 1 {
		f.read = reader(rounded[uint8](d))
	} else {
		f.read = reader(rounded[uint16](d))
	}
	return f
}

// rounded reads numbers as the nearest values of a float.
func rounded[T uint8 | uint16](d tensor.DType) func([]T) jsonscan.Elements {
	return func(all []T) jsonscan.Elements {
		return jsonscan.Rounded(all, func(f float64) (T, bool) {
			bits, ok := d.FloatBits(f)
			return T(bits), ok
		})
	}
}

var host = binary.NativeEndian

// reader reads elements into a tensor's memory as values of T.
func reader[T any](read func([]T) jsonscan.Elements) func(*tensor.Tensor) jsonscan.Elements {
	return func(t *tensor.Tensor) jsonscan.Elements {
		return read(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Data))),
			len(t.Data)/int(unsafe.Sizeof(*new(T)))))
	}
}

// Has reports whether JSON can express the elements of a dtype.
func Has(d tensor.DType) bool {
	_, ok := forms[d]
	return ok
}

// Names are the datatypes that JSON can express: those of a kind together, the shorter ones first.
var Names = sync.OnceValue(func() string {
	known := slices.Collect(maps.Keys(forms))
	slices.SortFunc(known, func(a, b tensor.DType) int {
		return cmp.Or(cmp.Compare(a.Kind(), b.Kind()), cmp.Compare(a.Size(), b.Size()), cmp.Compare(a, b))
	})
	names := make([]string, len(known))
	for i, d := range known {
		names[i] = d.V2()
	}
	return strings.Join(names, ", ")
})

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
	switch d.Kind() {
	case tensor.KindBool:
		return "true or false (BOOL)"
	case tensor.KindBytes:
		return "a string (BYTES)"
	case tensor.KindFloat:
		return fmt.Sprintf("a number of at most %s (%s)", strconv.FormatFloat(d.Largest(), 'g', 8, 64), d.V2())
	case tensor.KindUint:
		low, high = "0", strconv.FormatUint(math.MaxUint64>>(64-8*d.Size()), 10)
	default:
		low, high = strconv.FormatInt(math.MinInt64>>(64-8*d.Size()), 10),
			strconv.FormatInt(math.MaxInt64>>(64-8*d.Size()), 10)
	}
	return fmt.Sprintf("a whole number from %s to %s (%s)", low, high, d.V2())
}
