package tensor

import (
	"math"
	"unsafe"
)

// Rounds reports whether CastNearest takes values that Cast refuses: whether a float dtype lacks
// values of another dtype, or bool those of a dtype of more than two.
func Rounds(from, to DType) bool {
	from, to = parts(from, to)
	if !Casts(from, to) || from == to {
		return false
	}
	digits, exponent := from.precision()
	most, largest := to.precision()
	return to == Bool || to.IsFloat() && (digits > most || exponent > largest)
}

// precision returns how many binary digits values of a real dtype have, and the exponent of two
// that is above all of them.
func (d DType) precision() (digits, exponent int) {
	if d == Bool {
		return 1, 1
	}
	if d.IsFloat() {
		_, exponent = math.Frexp(d.Largest())
		return floats[d].digits, exponent
	}
	return 8 * d.Size(), 8 * d.Size()
}

// A rounding has the functions of one real dtype that CastNearest uses for each target.
type rounding struct{ float32, float64, odd, truth castFunc }

var roundings = [len(dtypes)]rounding{
	Int8: roundingOf[int8](), Int16: roundingOf[int16](), Int32: roundingOf[int32](), Int64: roundingOf[int64](),
	Uint8: roundingOf[uint8](), Uint16: roundingOf[uint16](), Uint32: roundingOf[uint32](),
	Uint64:  roundingOf[uint64](),
	Float32: roundingOf[float32](), Float64: roundingOf[float64](),
}

func roundingOf[F real]() rounding {
	return rounding{roundSlice[F, float32], roundSlice[F, float64], oddSlice[F], truthSlice[F]}
}

// nearest is the conversion of CastNearest.
func nearest(from, to DType) conversion {
	c := conversion{narrow: carried[to].nearest, failure: "which is out of the range of %s"}
	switch r := roundings[from.carrier()]; {
	case to == Bool:
		c.convert = r.truth
	case to == Float32:
		c.convert = r.float32
	case to == Float64:
		c.convert = r.float64
	case to.IsFloat():
		c.convert = r.odd
	default:
		return exact(from, to)
	}
	return c
}

// roundSlice converts to the nearest float, which Go's conversion is.
func roundSlice[F real, T float32 | float64](dst, src []byte, n int) int {
	from := unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(src))), n)
	to := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(dst))), n)
	for i, v := range from {
		if to[i] = T(v); math.IsInf(float64(to[i]), 0) && !math.IsInf(float64(v), 0) {
			return i
		}
	}
	return -1
}

// oddSlice converts to float32 on the way to a shorter float. What does not fit becomes the
// neighbour whose last bit is 1: the next rounding then never takes it for a value halfway between
// two shorter floats, and so decides as if it were the only one (Boldo and Melquiond, 2008).
func oddSlice[F real](dst, src []byte, n int) int {
	from := unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(src))), n)
	to := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(dst))), n)
	for i, v := range from {
		f := oddFloat64(v)
		r := float32(f)
		if float64(r) != f && f == f {
			b := math.Float32bits(r)
			if math.Abs(float64(r)) > math.Abs(f) {
				b--
			}
			r = math.Float32frombits(b | 1)
		}
		to[i] = r
	}
	return -1
}

// oddFloat64 is a float64, for an integer of more digits one whose last bit is 1.
func oddFloat64[F real](v F) float64 {
	const low = 1<<11 - 1 // bits of 64 that a float64 lacks
	if isFloat[F]() || unsafe.Sizeof(v) < 8 {
		return float64(v)
	}
	magnitude, sign := uint64(v), 1.0
	if v < 0 {
		magnitude, sign = -magnitude, -1
	}
	if magnitude > 1<<53 && magnitude&low != 0 {
		magnitude = magnitude&^low | (low + 1)
	}
	return sign * float64(magnitude)
}

// truthSlice converts all numbers but 0 to 1.
func truthSlice[F real](dst, src []byte, n int) int {
	for i, v := range unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(src))), n) {
		if v != v {
			return i
		}
		if dst[i] = 0; v != 0 {
			dst[i] = 1
		}
	}
	return -1
}
