package rest

import (
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/shiva/jsontext"
	"github.com/shivad/shivad/shiva/tensor"
)

// data reads a tensor's data, an array of all elements or arrays nested like its shape, into the
// memory of into, whose size matches shape and dtype. For Bytes it appends to that memory, which
// has room.
func (t *text) data(what func() string, into *tensor.Tensor) {
	t.Peek()
	start := t.At
	done, ok := t.Array(into.Shape, elements[into.DType](into))
	if !ok {
		t.explain(what, into, done)
	}
	t.setApart(start)
}

// setApart excludes the text since start from what limits.metadata_bytes counts.
func (t *text) setApart(start int) {
	t.apart += t.At - start
	if t.Limit > 0 {
		t.Limit += t.At - start
	}
}

// elements maps each dtype to a reader of its elements into a tensor's memory; for Bytes it
// appends. A dtype without a reader is sent as bytes only.
var elements = map[tensor.DType]func(*tensor.Tensor) jsontext.Elements{
	tensor.Float64:  elementReader(jsontext.Float64s),
	tensor.Float32:  elementReader(jsontext.Float32s),
	tensor.Float16:  elementReader(jsontext.Float16s),
	tensor.BFloat16: elementReader(jsontext.BFloat16s),
	tensor.Int8:     elementReader(jsontext.Integers[int8]),
	tensor.Int16:    elementReader(jsontext.Integers[int16]),
	tensor.Int32:    elementReader(jsontext.Integers[int32]),
	tensor.Int64:    elementReader(jsontext.Integers[int64]),
	tensor.Uint8:    elementReader(jsontext.Integers[uint8]),
	tensor.Uint16:   elementReader(jsontext.Integers[uint16]),
	tensor.Uint32:   elementReader(jsontext.Integers[uint32]),
	tensor.Uint64:   elementReader(jsontext.Integers[uint64]),
	tensor.Bool:     elementReader(jsontext.Bools),
	tensor.Bytes: func(t *tensor.Tensor) jsontext.Elements {
		return jsontext.Strings(func(text []byte) { t.Data = tensor.AppendElem(t.Data, text) })
	},
}

// elementReader reads elements into a tensor's memory as values of T.
func elementReader[T any](read func([]T) jsontext.Elements) func(*tensor.Tensor) jsontext.Elements {
	return func(t *tensor.Tensor) jsontext.Elements {
		return read(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(t.Data))), len(t.Data)/int(unsafe.Sizeof(*new(T)))))
	}
}

// explain fails and names the fault in data of which only the first done elements could be read. It
// reads all of the data again, at the expense of the client that sent the fault.
func (t *text) explain(what func() string, into *tensor.Tensor, done int) {
	raw := t.dataText()
	if raw == nil {
		return
	}
	again := newText(raw, t.Depth, 0)
	if raw[0] != '[' {
		again.wrong(what, "data", "an array")
		t.Fail(again.Err())
		return
	}
	count, _ := into.Shape.Elements()
	found := nesting{shape: into.Shape, want: done}
	found.walk(again, 0)
	nested := found.levels > 1
	switch {
	case found.mixed:
		t.Fail(gate.Invalid("%s: data has an array that mixes arrays and other values", what()))
	case nested && found.levels != len(into.Shape):
		t.Fail(gate.Invalid("%s: shape %s has %d dimensions, but data is nested %d deep; expected the same depth, or one flat array of %d elements",
			what(), into.Shape, len(into.Shape), found.levels, count))
	case found.total != count:
		t.Fail(gate.Invalid("%s: shape %s takes %d elements, got %d", what(), into.Shape, count, found.total))
	case nested && found.ragged:
		t.Fail(gate.Invalid("%s: data has %d elements, but the lengths of its arrays do not match shape %s", what(), count, into.Shape))
	default:
		again.At = found.at
		again.wrong(what, fmt.Sprintf("element %d", done), wanted(into.DType))
		t.Fail(again.Err())
	}
}

// dataText reads data as text.
func (t *text) dataText() []byte {
	limit := t.Limit
	t.Limit = 0
	raw := t.Raw()
	t.Limit = limit
	return raw
}

// A nesting compares the nesting of arrays with a shape.
type nesting struct {
	shape tensor.Shape
	want  int // index of the element whose offset is wanted

	total  int  // values that are not arrays
	at     int  // offset of the wanted element
	levels int  // deepest nesting
	mixed  bool // an array holds arrays and other values
	ragged bool // an array is not as long as its dimension
}

// walk reads a well-formed array.
func (n *nesting) walk(t *text, depth int) {
	arrays, others := 0, 0
	for range t.Elements {
		if t.Peek() == '[' {
			arrays++
			n.walk(t, depth+1)
			continue
		}
		if n.total == n.want {
			n.at = t.At
		}
		others++
		n.total++
		t.Raw()
	}
	n.levels = max(n.levels, depth+1)
	n.mixed = n.mixed || arrays > 0 && others > 0
	n.ragged = n.ragged || depth < len(n.shape) && arrays+others != n.shape[depth]
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
