package rest

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
	"unsafe"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

// An elements function reads the elements of one innermost array, whose bracket ends before
// b[i], into the places from first to first+n. It gives the offset after the array's end and n.
// Where something else stands, it gives its offset and how many elements it has read.
type elements func(b []byte, i, first, n int) (end, done int)

// data reads a tensor's data into the memory of t, which is as long as shape and dtype ask for:
// an array of all elements, or arrays nested as the shape says. A Bytes tensor gets its data
// appended instead, and has room for it.
func (t *text) data(what func() string, into *tensor.Tensor) error {
	if t.peek() != '[' {
		return t.explain(what, into, t.at, 0)
	}
	start := t.at
	fill := filler(into)
	count, _ := into.Shape.Elements()
	nested := len(into.Shape) > 1
	if nested {
		nested = skipSpace(t.b, start+1) < len(t.b) && t.b[skipSpace(t.b, start+1)] == '['
	}
	levels := 1
	if nested {
		levels = len(into.Shape)
	}
	if levels > t.depth {
		return malformed("JSON: nested deeper than limits.json_depth allows, at byte %d", start)
	}
	var done int
	var ok bool
	if nested {
		t.at, done, ok = level(t.b, start, 0, into.Shape, fill)
	} else {
		t.at, done = fill(t.b, start+1, 0, count)
		ok = done == count && t.b[t.at-1] == ']'
	}
	if ok {
		return nil
	}
	return t.explain(what, into, start, done)
}

// level reads the array at b[i] and those in it, of shape's dimensions.
func level(b []byte, i, first int, shape tensor.Shape, fill elements) (end, done int, ok bool) {
	if i >= len(b) || b[i] != '[' {
		return i, first, false
	}
	i++
	if len(shape) == 1 {
		end, done = fill(b, i, first, shape[0])
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
		if i, first, ok = level(b, i, first, shape[1:], fill); !ok {
			return i, first, false
		}
		i = skipSpace(b, i)
	}
	if i >= len(b) || b[i] != ']' {
		return i, first, false
	}
	return i + 1, first, true
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// separator steps over what follows an element: a comma, or the bracket that ends the array
// after the last one.
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

// filler returns the function that reads t's elements.
func filler(t *tensor.Tensor) elements {
	switch t.DType {
	case tensor.Float32:
		all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(t.Data))), len(t.Data)/4)
		return func(b []byte, i, first, n int) (end, done int) { return floats(b, i, all[first:][:n]) }
	case tensor.Float64:
		return numbers(t, float)
	case tensor.Float16:
		return numbers(t, func(b []byte, i int) (uint16, int) { return small(b, i, half) })
	case tensor.BFloat16:
		return numbers(t, func(b []byte, i int) (uint16, int) { return small(b, i, bfloat) })
	case tensor.Int8:
		return numbers(t, whole[int8])
	case tensor.Int16:
		return numbers(t, whole[int16])
	case tensor.Int32:
		return numbers(t, whole[int32])
	case tensor.Int64:
		return numbers(t, whole[int64])
	case tensor.Uint8:
		return numbers(t, whole[uint8])
	case tensor.Uint16:
		return numbers(t, whole[uint16])
	case tensor.Uint32:
		return numbers(t, whole[uint32])
	case tensor.Uint64:
		return numbers(t, whole[uint64])
	case tensor.Bool:
		return numbers(t, boolean)
	}
	return func(b []byte, i, _, n int) (end, done int) { return texts(t, b, i, n) }
}

// numbers makes the elements function of a dtype whose elements lie in memory as T: one reads a
// value and gives the offset after it, or -1.
func numbers[T any](t *tensor.Tensor, one func(b []byte, i int) (T, int)) elements {
	all := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Data))), len(t.Data)/int(unsafe.Sizeof(*new(T))))
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

// floats is what numbers makes, for the dtype that most large tensors have, with the most usual
// form of a number read in the loop itself: digits, perhaps with a fraction, 19 of them at
// most. That is nearly twice as fast. Whatever else stands there is left to scan.
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
		if usual := whole == 1 || whole > 1 && b[from] != '0'; usual && whole+fraction <= maxDigits && (i == len(b) || b[i]|0x20 != 'e') {
			if f, ok = nearest(digits, -fraction); b[start] == '-' {
				f = -f
			}
		}
		if !ok {
			n := scan(b, start)
			if n.end < 0 {
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

// empty is the elements function of no elements.
func empty(b []byte, i int) (end, done int) {
	i = skipSpace(b, i)
	if i < len(b) && b[i] == ']' {
		return i + 1, 0
	}
	return i, 0
}

func float(b []byte, i int) (float64, int) {
	n := scan(b, i)
	if n.end < 0 {
		return 0, -1
	}
	f, ok := n.float64(b, i)
	if !ok {
		return 0, -1
	}
	return f, n.end
}

func small(b []byte, i int, narrow func(float64) (uint16, bool)) (uint16, int) {
	f, end := float(b, i)
	if end < 0 {
		return 0, -1
	}
	v, ok := narrow(f)
	if !ok {
		return 0, -1
	}
	return v, end
}

func whole[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](b []byte, i int) (T, int) {
	n := scan(b, i)
	if n.end < 0 {
		return 0, -1
	}
	m, ok := n.magnitude(b, i)
	if !ok || !fits(m, n.neg, T(0)-1 < 0, 8*int(unsafe.Sizeof(T(0)))) {
		return 0, -1
	}
	if n.neg {
		return -T(m), n.end
	}
	return T(m), n.end
}

func boolean(b []byte, i int) (byte, int) {
	switch {
	case bytes.HasPrefix(b[i:], []byte("true")):
		return 1, i + 4
	case bytes.HasPrefix(b[i:], []byte("false")):
		return 0, i + 5
	}
	return 0, -1
}

// texts appends the strings of an array to a Bytes tensor.
func texts(t *tensor.Tensor, b []byte, i, n int) (end, done int) {
	if n == 0 {
		return empty(b, i)
	}
	for k := range n {
		i = skipSpace(b, i)
		if i >= len(b) || b[i] != '"' {
			return i, k
		}
		end, ok := shiva.SkipValue(b, i, 0)
		if !ok || !utf8.Valid(b[i:end]) {
			return i, k
		}
		if inner := b[i+1 : end-1]; bytes.IndexByte(inner, '\\') < 0 {
			t.Data = tensor.AppendElem(t.Data, inner)
		} else if s, ok := shiva.ParseString(b[i:end]); ok {
			t.Data = tensor.AppendElem(t.Data, s)
		} else {
			return i, k
		}
		if i, ok = separator(b, end, k+1 == n); !ok {
			return i, k + 1
		}
	}
	return i, n
}

// explain says what is wrong with data of which done elements could be read, whatever JSON it
// is. It looks at all of it again, which only costs who sent it.
func (t *text) explain(what func() string, into *tensor.Tensor, start, done int) error {
	t.at = start
	raw, err := t.dataText()
	if err != nil {
		return err
	}
	if raw[0] != '[' {
		return (&text{b: raw, depth: t.depth}).wrong(of(what, func() string { return "data" }), "an array")
	}
	count, _ := into.Shape.Elements()
	found := nesting{shape: into.Shape, want: done}
	found.walk(raw, 0, 0)
	nested := found.levels > 1
	switch {
	case found.mixed:
		return invalid("%s: data has an array with both arrays and other values in it", what())
	case nested && found.levels != len(into.Shape):
		return invalid("%s: shape %s has %d dimensions, but data is nested %d deep; expected as many, or one array of %d elements",
			what(), into.Shape, len(into.Shape), found.levels, count)
	case found.total != count:
		return invalid("%s: shape %s takes %d elements, got %d", what(), into.Shape, count, found.total)
	case nested && found.ragged:
		return invalid("%s: data has %d elements, but its arrays are not as long as shape %s says", what(), count, into.Shape)
	}
	element := text{b: raw, at: found.at, depth: 1}
	return element.wrong(func() string { return fmt.Sprintf("%s: element %d", what(), done) }, wanted(into.DType))
}

// dataText reads data without looking into it.
func (t *text) dataText() ([]byte, error) {
	t.peek()
	start := t.at
	end, ok := shiva.SkipValue(t.b, start, t.depth)
	t.at = end
	if !ok {
		return nil, t.unexpected("a value")
	}
	if !utf8.Valid(t.b[start:end]) {
		return nil, malformed("JSON: the value at byte %d is not UTF-8", start)
	}
	t.apart += end - start
	return t.b[start:end], nil
}

// A nesting is how JSON arrays lie in each other, as against a shape.
type nesting struct {
	shape tensor.Shape
	want  int // index of an element, whose place is sought

	total  int  // values that are not arrays
	at     int  // offset of the one that is sought
	levels int  // deepest nesting
	mixed  bool // an array holds arrays and other values
	ragged bool // an array is not as long as its dimension
}

// walk looks at the array that begins at b[i], which is well-formed, and gives the offset after it.
func (s *nesting) walk(b []byte, i, depth int) int {
	arrays, others := 0, 0
	for i = skipSpace(b, i+1); b[i] != ']'; i = skipSpace(b, i) {
		switch b[i] {
		case ',':
			i++
		case '[':
			arrays++
			i = s.walk(b, i, depth+1)
		default:
			if s.total == s.want {
				s.at = i
			}
			others++
			s.total++
			i, _ = shiva.SkipValue(b, i, len(b))
		}
	}
	s.levels = max(s.levels, depth+1)
	s.mixed = s.mixed || arrays > 0 && others > 0
	s.ragged = s.ragged || depth < len(s.shape) && arrays+others != s.shape[depth]
	return i + 1
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
	return fmt.Sprintf("a whole number from %s to %s, without fraction or exponent (%s)", low, high, d.V2())
}
