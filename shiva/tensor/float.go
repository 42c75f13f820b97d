package tensor

import (
	"encoding/binary"
	"math"

	"github.com/x448/float16"
)

var ne = binary.NativeEndian

// A floatFormat is what tells one binary format of real numbers from another.
type floatFormat struct {
	digits   int // binary digits of a value
	smallest int // exponent of two of the smallest value that has all of them
	largest  float64
	value    func(bits uint64) float64
	bits     func(f float64) uint64 // of a value; a number beyond the largest is infinite
}

// floats has the floats that values convert to and from. LongDouble is not among them.
var floats = [len(dtypes)]floatFormat{
	Float16: {11, -14, 65504,
		func(bits uint64) float64 { return float64(float16.Frombits(uint16(bits)).Float32()) },
		func(f float64) uint64 { return uint64(float16.Fromfloat32(float32(f)).Bits()) }},
	BFloat16: {8, -126, 0xFFp120,
		func(bits uint64) float64 { return float64(math.Float32frombits(uint32(bits) << 16)) },
		func(f float64) uint64 { return uint64(math.Float32bits(float32(f)) >> 16) }},
	Float32: {24, -126, math.MaxFloat32,
		func(bits uint64) float64 { return float64(math.Float32frombits(uint32(bits))) },
		func(f float64) uint64 { return uint64(math.Float32bits(float32(f))) }},
	Float64: {53, -1022, math.MaxFloat64, math.Float64frombits, math.Float64bits},
}

// IsFloat reports whether d is a float whose values convert to and from Go's: each but LongDouble.
func (d DType) IsFloat() bool { return int(d) < len(floats) && floats[d].digits > 0 }

// Largest returns the largest finite value of a float for which [DType.IsFloat] is true, else 0.
func (d DType) Largest() float64 {
	if !d.IsFloat() {
		return 0
	}
	return floats[d].largest
}

// Float returns the value of the element at the beginning of data, in host byte order. It panics
// unless d is a float for which [DType.IsFloat] is true.
func (d DType) Float(data []byte) float64 {
	switch d.Size() {
	case 1:
		return floats[d].value(uint64(data[0]))
	case 2:
		return floats[d].value(uint64(ne.Uint16(data)))
	case 4:
		return floats[d].value(uint64(ne.Uint32(data)))
	}
	return floats[d].value(ne.Uint64(data))
}

// FloatBits returns the bits of the value of d that is nearest to f, ties to even. ok is false if
// that value is infinite and f is not. It panics unless d is a float for which [DType.IsFloat] is
// true.
func (d DType) FloatBits(f float64) (bits uint64, ok bool) {
	format := &floats[d]
	rounded := f
	if d.Size() < 4 { // Go's conversion rounds to float32
		rounded = format.round(f)
	}
	bits = format.bits(rounded)
	return bits, math.Abs(f) <= format.largest || f != f || math.IsInf(f, 0) || !math.IsInf(format.value(bits), 0)
}

// AppendFloat appends an element with the value of [DType.FloatBits], in host byte order.
func (d DType) AppendFloat(data []byte, f float64) (_ []byte, ok bool) {
	bits, ok := d.FloatBits(f)
	switch d.Size() {
	case 1:
		data = append(data, byte(bits))
	case 2:
		data = ne.AppendUint16(data, uint16(bits))
	case 4:
		data = ne.AppendUint32(data, uint32(bits))
	default:
		data = ne.AppendUint64(data, bits)
	}
	return data, ok
}

// round returns the number nearest to x with the digits of f, ties to even, which may be beyond the
// largest value of f.
func (f *floatFormat) round(x float64) float64 {
	_, exp := math.Frexp(x)                         // x is in [0.5, 1) times 2^exp
	last := max(exp-1, f.smallest) - (f.digits - 1) // exponent of the last digit's unit
	return math.Ldexp(math.RoundToEven(math.Ldexp(x, -last)), last)
}

// carried has the dtypes without arithmetic in Go. Casts convert their elements by way of as, which
// holds all their values: widen to it, exact and nearest from it, like a [castFunc].
var carried = [len(dtypes)]struct {
	as             DType
	widen          func(dst, src []byte, n int)
	exact, nearest castFunc
}{
	Bool:     {Uint8, widenBool, exactBool, nearestBool},
	Float16:  {Float32, widenFloat16, exactFloat16, nearestFloat16},
	BFloat16: {Float32, widenBFloat16, exactBFloat16, nearestBFloat16},
}

// carrier returns the dtype with Go arithmetic that d's elements are cast as: d, or one that holds
// all its values.
func (d DType) carrier() DType {
	if carried[d].widen != nil {
		return carried[d].as
	}
	return d
}

func widenBool(dst, src []byte, n int) {
	for i, b := range src[:n] {
		dst[i] = 0
		if b != 0 {
			dst[i] = 1
		}
	}
}

func exactBool(dst, src []byte, n int) int {
	for i, b := range src[:n] {
		if b > 1 {
			return i
		}
		dst[i] = b
	}
	return -1
}

func nearestBool(dst, src []byte, n int) int {
	copy(dst, src[:n])
	return -1
}

func widenFloat16(dst, src []byte, n int) {
	for i := range n {
		f := float16.Frombits(ne.Uint16(src[2*i:])).Float32()
		ne.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}

func exactFloat16(dst, src []byte, n int) int {
	for i := range n {
		f := math.Float32frombits(ne.Uint32(src[4*i:]))
		h := float16.Fromfloat32(f)
		if h.Float32() != f && f == f {
			return i
		}
		ne.PutUint16(dst[2*i:], h.Bits())
	}
	return -1
}

func nearestFloat16(dst, src []byte, n int) int {
	for i := range n {
		f := math.Float32frombits(ne.Uint32(src[4*i:]))
		h := float16.Fromfloat32(f)
		if h.IsInf(0) && !math.IsInf(float64(f), 0) {
			return i
		}
		ne.PutUint16(dst[2*i:], h.Bits())
	}
	return -1
}

func widenBFloat16(dst, src []byte, n int) {
	for i := range n {
		ne.PutUint32(dst[4*i:], uint32(ne.Uint16(src[2*i:]))<<16)
	}
}

func exactBFloat16(dst, src []byte, n int) int {
	for i := range n {
		b := ne.Uint32(src[4*i:])
		if f := math.Float32frombits(b); f != f {
			b = b&^0xffff | 1<<22 // still NaN with half its bits
		}
		if b&0xffff != 0 {
			return i
		}
		ne.PutUint16(dst[2*i:], uint16(b>>16))
	}
	return -1
}

func nearestBFloat16(dst, src []byte, n int) int {
	for i := range n {
		b := ne.Uint32(src[4*i:])
		f := float64(math.Float32frombits(b))
		if f != f {
			b = b&^0xffff | 1<<22 // still NaN with half its bits
		} else {
			b += 0x7fff + b>>16&1 // ties to even
		}
		if b &^= 0xffff; math.IsInf(float64(math.Float32frombits(b)), 0) && !math.IsInf(f, 0) {
			return i
		}
		ne.PutUint16(dst[2*i:], uint16(b>>16))
	}
	return -1
}
