package jsonscan

import (
	"bytes"
	"unicode/utf8"
	"unsafe"
)

// Elements is the destination of an array's elements: a function that reads one innermost array,
// whose opening bracket is before b[i], into the elements first to first+n. It returns the offset
// after the array's end and n. At unexpected text it returns the offset of that and how many
// elements it has read.
type Elements func(b []byte, i, first, n int) (end, done int)

// Array reads an array with as many elements as shape has: a flat array of all of them, or arrays
// nested like the shape. At unexpected text it leaves s in place, and returns false and how many
// elements precede that text.
func (s *Scanner) Array(shape []int, into Elements) (done int, ok bool) {
	if s.Peek() != '[' {
		return 0, false
	}
	nested := len(shape) > 1
	if nested {
		i := skipSpace(s.Text, s.At+1)
		nested = i < len(s.Text) && s.Text[i] == '['
	}
	if !nested {
		count := 1
		for _, n := range shape {
			count *= n
		}
		shape = []int{count}
	}
	if len(shape) > s.Depth {
		s.fail(TooDeep, s.At, "nested too deeply at byte %d", s.At)
		return 0, false
	}
	end, done, ok := level(s.Text, s.At, 0, shape, into)
	if ok {
		s.At = end
	}
	return done, ok
}

// level reads the array at b[i] and the arrays in it, with the dimensions of shape.
func level(b []byte, i, first int, shape []int, into Elements) (end, done int, ok bool) {
	if i >= len(b) || b[i] != '[' {
		return i, first, false
	}
	i++
	if len(shape) == 1 {
		end, done = into(b, i, first, shape[0])
		return end, first + done, done == shape[0] && b[end-1] == ']'
	}
	i = skipSpace(b, i)
	for k := range shape[0] {
		if k > 0 {
			if i >= len(b) || b[i] != ',' {
				return i, first, false
			}
			i = skipSpace(b, i+1)
		}
		if i, first, ok = level(b, i, first, shape[1:], into); !ok {
			return i, first, false
		}
		i = skipSpace(b, i)
	}
	if i >= len(b) || b[i] != ']' {
		return i, first, false
	}
	return i + 1, first, true
}

// separator steps over the comma after an element, or over the closing bracket after the last one.
func separator(b []byte, i int, last bool) (next int, ok bool) {
	i = skipSpace(b, i)
	if i >= len(b) {
		return i, false
	}
	if last {
		return i + 1, b[i] == ']'
	}
	return i + 1, b[i] == ','
}

// empty reads an array without elements.
func empty(b []byte, i int) (end, done int) {
	i = skipSpace(b, i)
	if i < len(b) && b[i] == ']' {
		return i + 1, 0
	}
	return i, 0
}

// values returns Elements for a slice of T; one reads a value and returns the offset after it, or
// -1.
func values[T any](all []T, one func(b []byte, i int) (T, int)) Elements {
	return func(b []byte, i, first, n int) (int, int) {
		into := all[first:][:n]
		if n == 0 {
			return empty(b, i)
		}
		for k := range into {
			i = skipSpace(b, i)
			v, end := one(b, i)
			if end < 0 {
				return i, k
			}
			into[k] = v
			if k+1 < n && end < len(b) && b[end] == ',' {
				i = end + 1
				continue
			}
			var ok bool
			if i, ok = separator(b, end, k+1 == n); !ok {
				return i, k + 1
			}
		}
		return i, n
	}
}

// Float32s reads numbers as the nearest float32, ties to even, and stops at one beyond the largest
// float32.
func Float32s(all []float32) Elements {
	return func(b []byte, i, first, n int) (end, done int) { return floats(b, i, all[first:][:n]) }
}

// floats is values for the type of most large tensors. It reads the most common form of a number,
// up to 19 digits, perhaps with a fraction, in the loop itself, which is nearly twice as fast. Any
// other form is left to scanNumber.
func floats(b []byte, i int, into []float32) (end, done int) {
	if len(into) == 0 {
		return empty(b, i)
	}
	for k := range into {
		i = skipSpace(b, i)
		start := i
		if i < len(b) && b[i] == '-' {
			i++
		}
		from := i
		var digits uint64
		for i < len(b) && b[i]-'0' <= 9 {
			digits = 10*digits + uint64(b[i]-'0')
			i++
		}
		whole, fraction := i-from, 0
		if i < len(b) && b[i] == '.' {
			if i, digits = run(b, i+1, digits); i == from+whole+1 {
				return start, k
			}
			fraction = i - from - whole - 1
		}
		f, ok := float32(0), false
		if usual := whole == 1 || whole > 1 && b[from] != '0'; usual && whole+fraction <= maxDigits &&
			(i == len(b) || b[i]|0x20 != 'e') {
			if f, ok = nearest(digits, -fraction); b[start] == '-' {
				f = -f
			}
		}
		if !ok {
			n := scanNumber(b, start)
			if !n.ok {
				return start, k
			}
			if f, ok = n.float32(b, start); !ok {
				return start, k
			}
			i = n.end
		}
		into[k] = f
		if k+1 < len(into) && i < len(b) && b[i] == ',' {
			i++
			continue
		}
		if i, ok = separator(b, i, k+1 == len(into)); !ok {
			return i, k + 1
		}
	}
	return i, len(into)
}

// Float64s reads numbers as the nearest float64, like Float32s.
func Float64s(all []float64) Elements { return values(all, float) }

// Rounded reads numbers as values of another float: those that round returns for the nearest
// float64. It stops at a number that round refuses.
func Rounded[T any](all []T, round func(f float64) (T, bool)) Elements {
	return values(all, func(b []byte, i int) (v T, end int) {
		f, end := float(b, i)
		if end < 0 {
			return v, -1
		}
		v, ok := round(f)
		if !ok {
			return v, -1
		}
		return v, end
	})
}

func float(b []byte, i int) (float64, int) {
	n := scanNumber(b, i)
	if !n.ok {
		return 0, -1
	}
	f, ok := n.float64(b, i)
	if !ok {
		return 0, -1
	}
	return f, n.end
}

// An Integer is an integer type.
type Integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// Integers reads whole numbers that fit T, however they are written: 3, 3.0 and 3e0 are one number.
func Integers[T Integer](all []T) Elements { return values(all, integer[T]) }

func integer[T Integer](b []byte, i int) (T, int) {
	n := scanNumber(b, i)
	if !n.ok {
		return 0, -1
	}
	m, ok := n.magnitude(b, i)
	if !ok || !fits(m, n.negative, T(0)-1 < 0, 8*int(unsafe.Sizeof(T(0)))) {
		return 0, -1
	}
	if n.negative {
		return -T(m), n.end
	}
	return T(m), n.end
}

// Bools reads true and false as 1 and 0, and the numbers 1 and 0 as themselves.
func Bools(all []byte) Elements {
	return values(all, func(b []byte, i int) (byte, int) {
		switch {
		case bytes.HasPrefix(b[i:], []byte("true")):
			return 1, i + 4
		case bytes.HasPrefix(b[i:], []byte("false")):
			return 0, i + 5
		}
		v, end := integer[uint8](b, i)
		if v > 1 {
			return 0, -1
		}
		return v, end
	})
}

// Strings passes each string of an array to add, which must not retain the slice.
func Strings(add func(text []byte)) Elements {
	return func(b []byte, i, _, n int) (int, int) {
		if n == 0 {
			return empty(b, i)
		}
		for k := range n {
			i = skipSpace(b, i)
			if i >= len(b) || b[i] != '"' {
				return i, k
			}
			end, ok := skipString(b, i, 0)
			if !ok || !utf8.Valid(b[i:end]) {
				return i, k
			}
			add(unescape(b[i:end]))
			if i, ok = separator(b, end, k+1 == n); !ok {
				return i, k + 1
			}
		}
		return i, n
	}
}
