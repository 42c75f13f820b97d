package tensor

import (
	"math/bits"
	"slices"
	"strconv"
)

// A Shape is the size of each dimension, slowest first. An empty Shape is that of a single
// element. In a [Spec], -1 stands for any size.
type Shape []int

// Elements returns the number of elements. ok is false if a dimension is negative or the product of
// the dimensions does not fit an int. The overflow check ignores dimensions of zero, so [0, 2^40,
// 2^40] is refused rather than taken for empty: an array of that shape cannot be indexed, and numpy
// refuses it too.
func (s Shape) Elements() (n int, ok bool) {
	product, empty := uint(1), false
	for _, d := range s {
		switch {
		case d < 0:
			return 0, false
		case d == 0:
			empty = true
		default:
			hi, lo := bits.Mul(product, uint(d))
			if hi != 0 || lo > maxInt {
				return 0, false
			}
			product = lo
		}
	}
	if empty {
		return 0, true
	}
	return int(product), true
}

const maxInt = ^uint(0) >> 1

// Equal reports whether the two shapes have the same dimensions.
func (s Shape) Equal(o Shape) bool { return slices.Equal(s, o) }

// Fits reports whether s matches a declared shape: same rank, and same dimensions except where the
// declared one is -1.
func (s Shape) Fits(declared Shape) bool {
	if len(s) != len(declared) {
		return false
	}
	for i, d := range declared {
		if d != -1 && d != s[i] {
			return false
		}
	}
	return true
}

// String returns a text like "[2, 3]".
func (s Shape) String() string { return string(s.AppendText(make([]byte, 0, 32))) }

// AppendText appends the text that String returns.
func (s Shape) AppendText(b []byte) []byte {
	b = append(b, '[')
	for i, d := range s {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(d), 10)
	}
	return append(b, ']')
}
