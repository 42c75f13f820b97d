package tensor

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"
)

// Cast returns t with its elements as another dtype, in memory of the pool, whose one reference is
// the caller's. If t has that dtype already, Cast retains and returns t.
//
// Values are preserved, or the cast fails and names the first element that would change: one that
// is out of range, has a fraction that an integer cannot hold, or more digits than a float can.
// Real numbers and bools can be cast to one another; -0 may become 0, NaN casts to floats only,
// bool is 0 and 1. A complex dtype casts to the other complex one only. LongDouble and Bytes cannot
// be cast.
func Cast(t Tensor, to DType, pool *Pool) (Tensor, error) { return cast(t, to, pool, exact) }

// CastNearest is Cast, but a float dtype gets the nearest of its values, ties to even, and bool
// gets true for all numbers but 0. A number beyond the largest float is an error, and so is NaN as
// bool. Integers still must be preserved: a fraction is more often a mistake than a rounding.
func CastNearest(t Tensor, to DType, pool *Pool) (Tensor, error) { return cast(t, to, pool, nearest) }

// Casts reports whether Cast can convert between two dtypes, depending on the values.
func Casts(from, to DType) bool {
	from, to = parts(from, to)
	return from.Valid() && to.Valid() && casts[from.carrier()][to.carrier()] != nil
}

// parts returns the dtypes as which elements are cast: those of complex numbers part by part.
func parts(from, to DType) (DType, DType) {
	switch {
	case from == Complex64 && to == Complex128:
		return Float32, Float64
	case from == Complex128 && to == Complex64:
		return Float64, Float32
	}
	return from, to
}

// A conversion casts elements of one dtype's carrier to those of another's, and from that to the
// other dtype if it is not its own carrier.
type conversion struct {
	convert castFunc
	narrow  castFunc
	failure string // why an element cannot be cast, with %s for the dtype
}

func exact(from, to DType) conversion {
	return conversion{casts[from.carrier()][to.carrier()], carried[to].exact, "which no %s is equal to"}
}

func cast(t Tensor, to DType, pool *Pool, how func(from, to DType) conversion) (Tensor, error) {
	if err := t.Check(); err != nil {
		return Tensor{}, err
	}
	if t.DType == to {
		t.Retain()
		return t, nil
	}
	from, into := parts(t.DType, to)
	var c conversion
	if Casts(from, into) {
		c = how(from, into)
	}
	if c.convert == nil {
		return Tensor{}, fmt.Errorf("tensor: no cast from %s to %s", t.DType, to)
	}
	n := len(t.Data) / from.Size()
	buf, err := pool.Get(n * into.Size())
	if err != nil {
		return Tensor{}, err
	}
	out := Tensor{Name: t.Name, DType: to, Shape: append(Shape(nil), t.Shape...), Data: buf.Bytes(), Buf: buf}
	// Cast in blocks that stay in the first-level cache on the way through the carriers.
	var wide, narrow [castBlock * 4]byte
	for done := 0; done < n; done += castBlock {
		k := min(castBlock, n-done)
		src, dst := t.Data[done*from.Size():], out.Data[done*into.Size():]
		if from.carrier() != from {
			carried[from].widen(wide[:], src, k)
			src = wide[:]
		}
		result := dst
		if into.carrier() != into {
			result = narrow[:]
		}
		bad := c.convert(result, src, k)
		if bad < 0 && into.carrier() != into {
			bad = c.narrow(dst, narrow[:], k)
		}
		if bad >= 0 {
			out.Release()
			at := (done + bad) * from.Size() / t.DType.Size()
			return Tensor{}, fmt.Errorf("tensor: element %d is the %s %s, "+c.failure, at, t.DType, t.elementText(at),
				to)
		}
	}
	return out, nil
}

// castBlock is how many elements are cast at a time.
const castBlock = 512

// elementText formats element i of a tensor of numbers, for errors.
func (t Tensor) elementText(i int) string {
	b := t.Data[i*t.DType.Size():]
	var v any
	switch t.DType {
	case Float64:
		v = t.DType.Float(b)
	case Complex64:
		v = complex(math.Float32frombits(ne.Uint32(b)), math.Float32frombits(ne.Uint32(b[4:])))
	case Complex128:
		v = complex(math.Float64frombits(ne.Uint64(b)), math.Float64frombits(ne.Uint64(b[8:])))
	case Uint8, Bool:
		v = b[0]
	case Int8:
		v = int8(b[0])
	case Uint16:
		v = ne.Uint16(b)
	case Int16:
		v = int16(ne.Uint16(b))
	case Uint32:
		v = ne.Uint32(b)
	case Int32:
		v = int32(ne.Uint32(b))
	case Uint64:
		v = ne.Uint64(b)
	case Int64:
		v = int64(ne.Uint64(b))
	default: // a float of at most 32 bits
		v = float32(t.DType.Float(b))
	}
	return fmt.Sprint(v)
}

// A real is a Go type whose elements are cast as they are.
type real interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

// A castFunc converts n elements from src to dst, and returns the first that would change its
// value, or -1.
type castFunc = func(dst, src []byte, n int) int

// casts has a function for each pair of real dtypes, indexed by dtype.
var casts = func() (m [len(dtypes)][len(dtypes)]castFunc) {
	m[Int8] = castsFrom[int8]()
	m[Int16] = castsFrom[int16]()
	m[Int32] = castsFrom[int32]()
	m[Int64] = castsFrom[int64]()
	m[Uint8] = castsFrom[uint8]()
	m[Uint16] = castsFrom[uint16]()
	m[Uint32] = castsFrom[uint32]()
	m[Uint64] = castsFrom[uint64]()
	m[Float32] = castsFrom[float32]()
	m[Float64] = castsFrom[float64]()
	return m
}()

func castsFrom[F real]() [len(dtypes)]castFunc {
	return [len(dtypes)]castFunc{
		Int8:    castSlice[F, int8],
		Int16:   castSlice[F, int16],
		Int32:   castSlice[F, int32],
		Int64:   castSlice[F, int64],
		Uint8:   castSlice[F, uint8],
		Uint16:  castSlice[F, uint16],
		Uint32:  castSlice[F, uint32],
		Uint64:  castSlice[F, uint64],
		Float32: castSlice[F, float32],
		Float64: castSlice[F, float64],
	}
}

// castSlice is the castFunc of one pair. Data need not be aligned.
func castSlice[F, T real](dst, src []byte, n int) int {
	from := unsafe.Slice((*F)(unsafe.Pointer(unsafe.SliceData(src))), n)
	to := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(dst))), n)
	for i, v := range from {
		if !holds[T](v) {
			return i
		}
		to[i] = T(v)
	}
	return -1
}

// holds reports whether T has a value equal to v. All but the last comparison of each case is
// constant for each pair of types.
func holds[T, F real](v F) bool {
	switch {
	case isFloat[F]() && isFloat[T]():
		return F(T(v)) == v || v != v
	case isFloat[F]():
		// Go does not define the conversion of an out-of-range float, so check the range first.
		half := float64(uint64(1) << (8*unsafe.Sizeof(T(0)) - 1))
		low, high := 0.0, 2*half
		if isSigned[T]() {
			low, high = -half, half
		}
		f := float64(v)
		return f >= low && f < high && F(T(v)) == v
	case isFloat[T]():
		digits := 53
		if unsafe.Sizeof(T(0)) == 4 {
			digits = 24
		}
		if 8*int(unsafe.Sizeof(v)) <= digits {
			return true
		}
		magnitude := uint64(v)
		if v < 0 {
			magnitude = -magnitude
		}
		return magnitude == 0 || bits.Len64(magnitude)-bits.TrailingZeros64(magnitude) <= digits
	default:
		return F(T(v)) == v && (v < 0) == (T(v) < 0)
	}
}

func isFloat[T real]() bool  { return T(1)/2 != 0 }
func isSigned[T real]() bool { return T(0)-1 < 0 }
