package main

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/x448/float16"

	"github.com/shivad/shivad/shiva/tensor"
)

var native = binary.NativeEndian

// integers are the integer dtypes with their bounds.
var integers = map[tensor.DType]struct {
	low  int64
	high uint64
}{
	tensor.Bool: {0, 1},
	tensor.Int8: {math.MinInt8, math.MaxInt8}, tensor.Int16: {math.MinInt16, math.MaxInt16}, tensor.Int32: {math.MinInt32, math.MaxInt32}, tensor.Int64: {math.MinInt64, math.MaxInt64},
	tensor.Uint8: {0, math.MaxUint8}, tensor.Uint16: {0, math.MaxUint16}, tensor.Uint32: {0, math.MaxUint32}, tensor.Uint64: {0, math.MaxUint64},
}

// appendFloat appends the number of a float dtype that is nearest to f.
func appendFloat(dst []byte, d tensor.DType, f float64) ([]byte, error) {
	overflow := func(rounded float64) bool { return math.IsInf(rounded, 0) && !math.IsInf(f, 0) }
	switch d {
	case tensor.Float16:
		h := float16.Fromfloat32(float32(f))
		if overflow(float64(h.Float32())) {
			return dst, fmt.Errorf("%v does not fit FP16, numbers from -65504 to 65504", f)
		}
		return native.AppendUint16(dst, h.Bits()), nil
	case tensor.Float32:
		if overflow(float64(float32(f))) {
			return dst, fmt.Errorf("%v does not fit FP32", f)
		}
		return native.AppendUint32(dst, math.Float32bits(float32(f))), nil
	case tensor.Float64:
		return native.AppendUint64(dst, math.Float64bits(f)), nil
	case tensor.LongDouble:
		mantissa, exponent := toExtended(f)
		return native.AppendUint64(native.AppendUint64(dst, mantissa), uint64(exponent)), nil
	}
	return dst, fmt.Errorf("%s is not a type of real numbers", d.V2())
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
	case tensor.Float16:
		return float64(float16.Frombits(native.Uint16(b)).Float32())
	case tensor.Float32:
		return float64(math.Float32frombits(native.Uint32(b)))
	case tensor.Float64:
		return math.Float64frombits(native.Uint64(b))
	case tensor.LongDouble:
		return fromExtended(native.Uint64(b), native.Uint16(b[8:]))
	case tensor.Complex64:
		return complex(float64(math.Float32frombits(native.Uint32(b))), float64(math.Float32frombits(native.Uint32(b[4:]))))
	case tensor.Complex128:
		return complex(math.Float64frombits(native.Uint64(b)), math.Float64frombits(native.Uint64(b[8:])))
	}
	return nil
}
