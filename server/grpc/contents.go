package grpc

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// contents are InferTensorContents: the elements of one field, in the width that the field has;
// those of bytes_contents each after its length in 4 bytes, as in a tensor. Elements are
// little-endian, as tensors are on the machines that this runs on.
type contents struct {
	store
	number protowire.Number // of the field; 0 = none has come
	mixed  protowire.Number // another one that has values too
	count  int              // elements
}

// A contentsField is one of InferTensorContents.
type contentsField struct {
	name  string
	width int            // of an element as it is stored; 0: it varies
	wire  protowire.Type // of an element
}

var contentsFields = [...]contentsField{
	boolContents:   {"bool_contents", 1, protowire.VarintType},
	intContents:    {"int_contents", 4, protowire.VarintType},
	int64Contents:  {"int64_contents", 8, protowire.VarintType},
	uintContents:   {"uint_contents", 4, protowire.VarintType},
	uint64Contents: {"uint64_contents", 8, protowire.VarintType},
	fp32Contents:   {"fp32_contents", 4, protowire.Fixed32Type},
	fp64Contents:   {"fp64_contents", 8, protowire.Fixed64Type},
	bytesContents:  {"bytes_contents", 0, protowire.BytesType},
}

// fieldOf is the field that a datatype's elements travel in; 0 if it has none.
func fieldOf(d tensor.DType) protowire.Number {
	switch d {
	case tensor.Bool:
		return boolContents
	case tensor.Int8, tensor.Int16, tensor.Int32:
		return intContents
	case tensor.Int64:
		return int64Contents
	case tensor.Uint8, tensor.Uint16, tensor.Uint32:
		return uintContents
	case tensor.Uint64:
		return uint64Contents
	case tensor.Float32:
		return fp32Contents
	case tensor.Float64:
		return fp64Contents
	case tensor.Bytes:
		return bytesContents
	}
	return 0
}

// field reads one of InferTensorContents.
func (c *contents) field(r *reader, num protowire.Number, typ protowire.Type) {
	if num < boolContents || num > bytesContents {
		r.skip(num, typ)
		return
	}
	f := contentsFields[num]
	switch {
	case f.wire == protowire.BytesType && typ == f.wire:
		if c.of(num) {
			c.element(r)
			return
		}
		r.skip(num, typ)
	case typ == f.wire:
		if c.of(num) {
			c.value(r, f)
			return
		}
		r.skip(num, typ)
	case typ == protowire.BytesType && f.wire != protowire.BytesType:
		c.values(r, num, f)
	default:
		r.skip(num, typ)
	}
}

// of reports whether values of the field are to be kept: the first field's are.
func (c *contents) of(num protowire.Number) bool {
	if c.number == 0 {
		c.number = num
	}
	if c.number != num {
		c.mixed = num
	}
	return c.number == num
}

// values reads a packed field.
func (c *contents) values(r *reader, num protowire.Number, f contentsField) {
	n := r.length()
	if n == 0 {
		return
	}
	kept := c.of(num)
	if f.wire == protowire.VarintType {
		r.packed(n, func() {
			if kept {
				c.value(r, f)
			} else {
				r.varint()
			}
		})
		return
	}
	switch {
	case n%f.width != 0:
		r.malformed("%d bytes of %s, which are %d each", n, f.name, f.width)
	case !kept:
		r.pass(n)
	default:
		whole := 0
		if c.n == 0 {
			whole = n // and as a rule no more follows
		}
		c.fill(r.scanner, r.from, n, whole)
		c.count += n / f.width
	}
}

// value reads one element that is not of bytes_contents.
func (c *contents) value(r *reader, f contentsField) {
	if f.wire != protowire.VarintType {
		c.fill(r.scanner, r.from, f.width, 0)
		c.count++
		return
	}
	v := r.varint()
	if r.err != nil {
		return
	}
	room, err := c.extend(r.from, f.width, 0, 0)
	if err != nil {
		r.fail(err)
		return
	}
	switch f.width {
	case 1:
		room[0] = 0
		if v != 0 {
			room[0] = 1
		}
	case 4:
		binary.LittleEndian.PutUint32(room, uint32(v))
	case 8:
		binary.LittleEndian.PutUint64(room, v)
	}
	c.count++
}

// element reads one of bytes_contents.
func (c *contents) element(r *reader) {
	n := r.length()
	if r.err != nil {
		return
	}
	room, err := c.extend(r.from, 4, 0, 0)
	if err != nil {
		r.fail(err)
		return
	}
	binary.LittleEndian.PutUint32(room, uint32(n))
	c.fill(r.scanner, r.from, n, 0)
	c.count++
}

// settle checks that the elements are those of a tensor, and gives them its width.
func (c *contents) settle(name string, d tensor.DType, elements int) error {
	number := fieldOf(d)
	switch {
	case number == 0:
		return fmt.Errorf("%w: input %q: %s travels in raw_input_contents only", scheduler.ErrInvalidInput, name, d.V2())
	case c.number != 0 && c.number != number:
		return fmt.Errorf("%w: input %q: %s is expected in %s, got %s", scheduler.ErrInvalidInput, name, d.V2(),
			contentsFields[number].name, contentsFields[c.number].name)
	case c.mixed != 0:
		return fmt.Errorf("%w: input %q: there are %s and %s", scheduler.ErrInvalidInput, name,
			contentsFields[c.number].name, contentsFields[c.mixed].name)
	case c.count != elements:
		return fmt.Errorf("%w: input %q: expected %d elements in %s, got %d", scheduler.ErrInvalidInput, name, elements,
			contentsFields[number].name, c.count)
	}
	low, high := int64(0), int64(0)
	switch d {
	case tensor.Int8:
		low, high = math.MinInt8, math.MaxInt8
	case tensor.Int16:
		low, high = math.MinInt16, math.MaxInt16
	case tensor.Uint8:
		high = math.MaxUint8
	case tensor.Uint16:
		high = math.MaxUint16
	default:
		return nil
	}
	return c.narrow(name, d, low, high)
}

// narrow makes elements of 4 bytes those of d, in place.
func (c *contents) narrow(name string, d tensor.DType, low, high int64) error {
	data, size := c.bytes(), d.Size()
	for i := range c.count {
		v := int64(binary.LittleEndian.Uint32(data[4*i:]))
		if low < 0 {
			v = int64(int32(v))
		}
		if v < low || v > high {
			return fmt.Errorf("%w: input %q: element %d is %d, expected %d to %d for %s", scheduler.ErrInvalidInput, name, i, v, low, high, d.V2())
		}
		if size == 1 {
			data[i] = byte(v)
		} else {
			binary.LittleEndian.PutUint16(data[2*i:], uint16(v))
		}
	}
	c.n = c.count * size
	return nil
}
