package tensor

import (
	"iter"
	"strconv"
)

// A DType is the type of a tensor's elements. Its number is the code on the Shiva wire if it has
// one, and 32 or more otherwise.
//
// There is one DType per meaning: the wire has two codes each for float64 (2 and 11) and int64 (10
// and 13), which [FromWire] maps to one. The DTypes are 11 and 13 because the reference
// implementation sends and understands these.
type DType uint8

// The element types. The numbers are on the wire and may not change.
const (
	Float16    DType = 0
	Float32    DType = 1
	Uint8      DType = 3
	Int8       DType = 4
	Uint16     DType = 5
	Int16      DType = 6
	Uint32     DType = 7
	Int32      DType = 8
	Uint64     DType = 9
	Float64    DType = 11
	LongDouble DType = 12 // x86-64: 80-bit extended in 16 bytes, the last 6 of which are padding
	Int64      DType = 13
	Complex64  DType = 14 // real, then imaginary
	Complex128 DType = 15
	Bool       DType = 17 // one byte; any byte but 0 is true

	// Not on the Shiva wire.

	BFloat16 DType = 32 // the upper half of a float32
	// Variable size: each element is a 4-byte little-endian length and its bytes.
	Bytes DType = 33
)

// The other wire codes of float64 and int64, accepted and never sent.
const (
	wireFloat64 = 2
	wireInt64   = 10
)

// firstOffWire is the first number that is not a code of the Shiva wire.
const firstOffWire = 32

// A Kind tells what the elements of a dtype are.
type Kind uint8

// The kinds. LongDouble is a KindFloat, and has no arithmetic in Go: see [DType.IsFloat].
const (
	KindNone Kind = iota // of an invalid DType
	KindBool
	KindUint
	KindInt
	KindFloat
	KindComplex
	KindBytes
)

// dtypes describes every DType; a row without a name is not a DType. What else is known of a float
// is in the table of [DType.IsFloat].
var dtypes = [...]struct {
	name, v2  string
	kind      Kind
	size      uint8 // bytes of an element; 0: variable
	swapWidth uint8 // bytes of the unit that is in host byte order
	extension bool  // Triton's V2 lacks it
}{
	Float16:    {"float16", "FP16", KindFloat, 2, 2, false},
	Float32:    {"float32", "FP32", KindFloat, 4, 4, false},
	Uint8:      {"uint8", "UINT8", KindUint, 1, 1, false},
	Int8:       {"int8", "INT8", KindInt, 1, 1, false},
	Uint16:     {"uint16", "UINT16", KindUint, 2, 2, false},
	Int16:      {"int16", "INT16", KindInt, 2, 2, false},
	Uint32:     {"uint32", "UINT32", KindUint, 4, 4, false},
	Int32:      {"int32", "INT32", KindInt, 4, 4, false},
	Uint64:     {"uint64", "UINT64", KindUint, 8, 8, false},
	Float64:    {"float64", "FP64", KindFloat, 8, 8, false},
	LongDouble: {"longdouble", "LONGDOUBLE", KindFloat, 16, 16, true},
	Int64:      {"int64", "INT64", KindInt, 8, 8, false},
	Complex64:  {"complex64", "COMPLEX64", KindComplex, 8, 4, true},
	Complex128: {"complex128", "COMPLEX128", KindComplex, 16, 8, true},
	Bool:       {"bool", "BOOL", KindBool, 1, 1, false},
	BFloat16:   {"bfloat16", "BF16", KindFloat, 2, 2, false},
	Bytes:      {"bytes", "BYTES", KindBytes, 0, 1, false},
}

// DTypes are all of them, in the order of their numbers.
func DTypes() iter.Seq[DType] {
	return func(yield func(DType) bool) {
		for d := range dtypes {
			if d := DType(d); d.Valid() && !yield(d) {
				return
			}
		}
	}
}

var fromV2 = func() map[string]DType {
	m := make(map[string]DType)
	for d := range DTypes() {
		m[d.V2()] = d
	}
	return m
}()

// FromWire returns the DType of a code of the Shiva wire, and false for a code that has none.
func FromWire(code byte) (DType, bool) {
	switch code {
	case wireFloat64:
		return Float64, true
	case wireInt64:
		return Int64, true
	}
	d := DType(code)
	return d, d.OnWire()
}

// FromV2 returns the DType of a datatype name of the Predict Protocol V2 (FP32, BYTES, …).
// LONGDOUBLE, COMPLEX64 and COMPLEX128 are extensions of ours to that protocol.
func FromV2(name string) (DType, bool) {
	d, ok := fromV2[name]
	return d, ok
}

// FromName returns the DType with one of numpy's names, as [DType.String] gives them.
func FromName(name string) (DType, bool) {
	for d := range DTypes() {
		if d.String() == name {
			return d, true
		}
	}
	return 0, false
}

// Valid reports whether d is one of the constants.
func (d DType) Valid() bool { return int(d) < len(dtypes) && dtypes[d].name != "" }

// OnWire reports whether d can travel in a Shiva message.
func (d DType) OnWire() bool { return d < firstOffWire && d.Valid() }

// Size returns the number of bytes of an element; 0 for [Bytes], whose elements vary, and for an
// invalid DType.
func (d DType) Size() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return int(dtypes[d].size)
}

// Kind returns what d's elements are.
func (d DType) Kind() Kind {
	if !d.Valid() {
		return KindNone
	}
	return dtypes[d].kind
}

// Ordered reports whether elements can be ranked, after a [Cast] to float64: texts, complex numbers
// and long doubles cannot.
func (d DType) Ordered() bool {
	switch d.Kind() {
	case KindBool, KindUint, KindInt:
		return true
	}
	return d.IsFloat()
}

// WireType returns the dtype as which Shiva carries the values of d: d itself if it is on the wire,
// and float32 for a shorter float that is not. ok is false for [Bytes], which Shiva lacks.
func (d DType) WireType() (on DType, ok bool) {
	if !d.OnWire() && d.IsFloat() {
		return Float32, true
	}
	return d, d.OnWire()
}

// SwapWidth returns the number of bytes of the unit that is reversed between big-endian and
// little-endian, the width for [SwapCopy]: the element's size, but half of it for a complex number,
// whose two parts are reversed separately. 1 if there is nothing to reverse.
func (d DType) SwapWidth() int {
	if !d.Valid() {
		return 1
	}
	return int(dtypes[d].swapWidth)
}

// String returns numpy's name, such as "float32".
func (d DType) String() string {
	if !d.Valid() {
		return "dtype(" + strconv.Itoa(int(d)) + ")"
	}
	return dtypes[d].name
}

// Extension reports whether the Predict Protocol V2, as Triton serves it, lacks d: the name that
// [DType.V2] returns is then ours.
func (d DType) Extension() bool { return d.Valid() && dtypes[d].extension }

// V2 returns the name in the Predict Protocol V2, such as "FP32"; "" for an invalid DType.
func (d DType) V2() string {
	if !d.Valid() {
		return ""
	}
	return dtypes[d].v2
}
