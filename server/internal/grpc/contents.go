package grpc

import (
	"encoding/binary"
	"fmt"

	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/grpc/wire"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// contents are the elements of InferTensorContents, from one of its fields and in that field's
// width. Each element of bytes_contents has its length in 4 bytes before it, as in a tensor.
// Elements are little-endian, as tensors are on the machines that this runs on.
type contents struct {
	wire.Bytes
	number int // of the field; 0: none has arrived
	mixed  int // another field that has values as well
	count  int // elements
}

// A contentsField is a field of InferTensorContents.
type contentsField struct {
	name  string
	width int  // of an element in memory; 0: it varies
	fixed bool // the width on the wire is the same
}

var contentsFields = [...]contentsField{
	boolContents:   {"bool_contents", 1, false},
	intContents:    {"int_contents", 4, false},
	int64Contents:  {"int64_contents", 8, false},
	uintContents:   {"uint_contents", 4, false},
	uint64Contents: {"uint64_contents", 8, false},
	fp32Contents:   {"fp32_contents", 4, true},
	fp64Contents:   {"fp64_contents", 8, true},
	bytesContents:  {"bytes_contents", 0, false},
}

// dtypeFields maps each datatype to the field for its elements. The other datatypes have none.
var dtypeFields = map[tensor.DType]int{
	tensor.Bool:    boolContents,
	tensor.Int8:    intContents,
	tensor.Int16:   intContents,
	tensor.Int32:   intContents,
	tensor.Int64:   int64Contents,
	tensor.Uint8:   uintContents,
	tensor.Uint16:  uintContents,
	tensor.Uint32:  uintContents,
	tensor.Uint64:  uint64Contents,
	tensor.Float32: fp32Contents,
	tensor.Float64: fp64Contents,
	tensor.Bytes:   bytesContents,
}

// field reads a field of InferTensorContents.
func (c *contents) field(m *wire.Message, number int) {
	if number < boolContents || number > bytesContents {
		return
	}
	switch f := contentsFields[number]; {
	case f.fixed:
		if n := m.Fixed(f.width); n > 0 && c.take(number, n/f.width) {
			whole := 0
			if c.Len() == 0 {
				whole = n // usually the field does not repeat
			}
			m.Append(&c.Bytes, whole)
		}
	case number == bytesContents:
		if n, ok := m.Delimited(); ok && c.take(number, 1) {
			if length := m.Extend(&c.Bytes, 4); length != nil {
				binary.LittleEndian.PutUint32(length, uint32(n))
			}
			m.Append(&c.Bytes, 0)
		}
	default:
		m.Varints(func(v uint64) {
			if c.take(number, 1) {
				c.append(m, v, f.width)
			}
		})
	}
}

// take counts n more elements of a field, and reports whether to store them: only the elements of
// the first field are stored.
func (c *contents) take(number, n int) bool {
	if c.number == 0 {
		c.number = number
	}
	if c.number != number {
		c.mixed = number
		return false
	}
	c.count += n
	return true
}

// append stores one element.
func (c *contents) append(m *wire.Message, v uint64, width int) {
	room := m.Extend(&c.Bytes, width)
	switch {
	case room == nil:
	case width == 1:
		room[0] = 0
		if v != 0 {
			room[0] = 1
		}
	case width == 4:
		binary.LittleEndian.PutUint32(room, uint32(v))
	default:
		binary.LittleEndian.PutUint64(room, v)
	}
}

// finish checks that the elements make a tensor, and converts them to its width.
func (c *contents) finish(name string, d tensor.DType, elements int) error {
	number := dtypeFields[d]
	refuse := func(format string, args ...any) error {
		return fault.Invalid("input %q: %s", name, fmt.Sprintf(format, args...))
	}
	switch {
	case number == 0:
		return refuse("%s is accepted in raw_input_contents only", d.V2())
	case c.number != 0 && c.number != number:
		return refuse("expected %s in %s, got elements in %s", d.V2(), contentsFields[number].name,
			contentsFields[c.number].name)
	case c.mixed != 0:
		return refuse("expected elements in one field, got both %s and %s", contentsFields[c.number].name,
			contentsFields[c.mixed].name)
	case c.count != elements:
		return refuse("expected %s in %s, got %d", plural.Of(elements, "element"), contentsFields[number].name, c.count)
	}
	size := d.Size()
	low, high := int64(0), int64(1)<<(8*size)-1
	switch d {
	case tensor.Int8, tensor.Int16:
		low, high = -(high+1)/2, high/2
	case tensor.Uint8, tensor.Uint16:
	default:
		return nil
	}
	// Shrink elements of 4 bytes to the width of d, in place.
	data := c.Data()
	for i := range c.count {
		v := int64(binary.LittleEndian.Uint32(data[4*i:]))
		if low < 0 {
			v = int64(int32(v))
		}
		if v < low || v > high {
			return refuse("element %d is %d, expected %d to %d for %s", i, v, low, high, d.V2())
		}
		if size == 1 {
			data[i] = byte(v)
		} else {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(v))
		}
	}
	c.Truncate(c.count * size)
	return nil
}

// appendContents appends a tensor's elements as InferTensorContents.
func appendContents(b []byte, t tensor.Tensor) []byte {
	number := dtypeFields[t.DType]
	switch {
	case len(t.Data) == 0:
	case t.DType == tensor.Bytes:
		for data := t.Data; len(data) > 0; {
			n := binary.LittleEndian.Uint32(data)
			b = wire.AppendBytes(b, number, data[4:][:n])
			data = data[4+n:]
		}
	case contentsFields[number].fixed:
		b = wire.AppendBytes(b, number, t.Data)
	default:
		if t.DType.Size() < 8 { // an int64 holds every value of these datatypes
			t, _ = tensor.Cast(t, tensor.Int64, nil)
		}
		b = wire.AppendPacked(b, number, len(t.Data)/8, func(i int) uint64 {
			return binary.LittleEndian.Uint64(t.Data[8*i:])
		})
	}
	return b
}
