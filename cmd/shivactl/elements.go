package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/shivad/shivad/shiva/tensor"
)

var native = binary.NativeEndian

// integers are the integer dtypes with their bounds.
var integers = map[tensor.DType]struct {
	low  int64
	high uint64
}{
	tensor.Bool: {0, 1},
	tensor.Int8: {math.MinInt8, math.MaxInt8}, tensor.Int16: {math.MinInt16, math.MaxInt16},
	tensor.Int32: {math.MinInt32, math.MaxInt32}, tensor.Int64: {math.MinInt64, math.MaxInt64},
	tensor.Uint8: {0, math.MaxUint8}, tensor.Uint16: {0, math.MaxUint16}, tensor.Uint32: {0, math.MaxUint32},
	tensor.Uint64: {0, math.MaxUint64},
}

// appendFloat appends the number of a float dtype that is nearest to f.
func appendFloat(dst []byte, d tensor.DType, f float64) ([]byte, error) {
	switch {
	case d == tensor.LongDouble:
		mantissa, exponent := toExtended(f)
		return native.AppendUint64(native.AppendUint64(dst, mantissa), uint64(exponent)), nil
	case !d.IsFloat():
		return dst, fmt.Errorf("%s is not a type of real numbers", d.V2())
	}
	all, ok := d.AppendFloat(dst, f)
	if ok {
		return all, nil
	}
	bounds := ""
	if d.Size() < 4 { // so few that they are easily exceeded
		bounds = fmt.Sprintf(", numbers from -%[1]v to %[1]v", d.Largest())
	}
	return dst, fmt.Errorf("%v does not fit %s%s", f, d.V2(), bounds)
}

// toExtended returns f in the 80-bit extended format of x86: 64 bits of mantissa with its leading
// 1, and sign and exponent in 16.
func toExtended(f float64) (mantissa uint64, exponent uint16) {
	bits := math.Float64bits(f)
	sign := uint16(bits>>63) << 15
	fraction := bits & (1<<52 - 1)
	switch e := int(bits >> 52 & 0x7ff); {
	case e == 0x7ff: // infinity and NaN
		return 1<<63 | fraction<<11, sign | 0x7fff
	case e == 0 && fraction == 0:
		return 0, sign
	case e == 0: // denormal, which the wider exponent can normalise
		normal, shift := math.Frexp(math.Abs(f)) // normal in [0.5, 1)
		return uint64(math.Ldexp(normal, 64)), sign | uint16(shift-1+16383)
	default:
		return 1<<63 | fraction<<11, sign | uint16(e-1023+16383)
	}
}

// fromExtended returns the float64 nearest to an 80-bit extended number.
func fromExtended(mantissa uint64, exponent uint16) float64 {
	f := math.Ldexp(float64(mantissa), int(exponent&0x7fff)-16383-63)
	if exponent&0x7fff == 0x7fff {
		f = math.Inf(1)
		if mantissa<<1 != 0 {
			f = math.NaN()
		}
	}
	if exponent>>15 != 0 {
		f = -f
	}
	return f
}

// element is the i-th element of a tensor of numbers: a bool, int64, uint64, float64 or complex128.
func element(t tensor.Tensor, i int) any {
	b := t.Data[i*t.DType.Size():]
	switch t.DType {
	case tensor.Bool:
		return b[0] != 0
	case tensor.Int8:
		return int64(int8(b[0]))
	case tensor.Int16:
		return int64(int16(native.Uint16(b)))
	case tensor.Int32:
		return int64(int32(native.Uint32(b)))
	case tensor.Int64:
		return int64(native.Uint64(b))
	case tensor.Uint8:
		return uint64(b[0])
	case tensor.Uint16:
		return uint64(native.Uint16(b))
	case tensor.Uint32:
		return uint64(native.Uint32(b))
	case tensor.Uint64:
		return native.Uint64(b)
	case tensor.LongDouble:
		return fromExtended(native.Uint64(b), native.Uint16(b[8:]))
	case tensor.Complex64:
		return complex(tensor.Float32.Float(b), tensor.Float32.Float(b[4:]))
	case tensor.Complex128:
		return complex(tensor.Float64.Float(b), tensor.Float64.Float(b[8:]))
	}
	if t.DType.IsFloat() {
		return t.DType.Float(b)
	}
	return nil
}
