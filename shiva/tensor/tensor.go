package tensor

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/x448/float16"
)

// A Tensor is a dense array: a dtype, a shape and the elements' bytes.
//
// Data is in the byte order of the host and in C order (last dimension fastest); len(Data) is
// Shape.Elements()*DType.Size(). A Bytes tensor holds each element as a 4-byte little-endian
// length and then its bytes, as the Predict Protocol V2 does.
//
// A Tensor is a small value that may be copied; copies share Data. Buf, if not nil, owns the memory
// behind Data: to keep a copy past the life of the original, take a reference with Retain and give
// it back with Release.
type Tensor struct {
	Name  string
	DType DType
	Shape Shape
	Data  []byte
	Buf   *Buffer
}

// A Spec is a model's declaration of one input or output. A dimension of -1 accepts any size. The
// first dimension counts rows if the model is batched, which the model's declaration states.
type Spec struct {
	Name  string
	DType DType
	Shape Shape

	// Optional marks an input that a request may omit. Only models whose requests are executed one
	// by one have such inputs, and those that cut regions (see Regions).
	Optional bool

	// Regions marks the optional input that every input of pictures with Image.Regions has, which
	// RegionsOf makes: it is the name of that input. A request that brings it has one picture,
	// whose tensor has one row, and as many rows as regions. Empty for every other tensor.
	Regions string

	// Ragged marks an output of a batched model whose rows differ in size: its first dimension does
	// not count rows, but the values of all rows, one row after the other. Ragged is the name of
	// the output, an INT32 or INT64 for each row, with the number of values of each row. Empty for
	// every other tensor.
	Ragged string

	// Format marks an input as an image, and gives the order of its three dimensions: FormatNHWC or
	// FormatNCHW. Empty if not declared, and for every output.
	Format string

	// Image marks an input whose rows are pictures: clients may then send JPEG or PNG files instead
	// of pixels. nil for every other tensor. Shared by copies of the Spec: do not modify.
	Image *Image

	// Labels name the classes of an output of real numbers, in the order of the values of one row:
	// clients that ask for its highest values get these names with them. A class whose label is
	// empty, or beyond the end of the list, has no name. Shared by copies of the Spec: do not
	// modify.
	Labels []string
}

// Takes reports whether a tensor of dtype d can be this input: Bytes are picture files.
func (s Spec) Takes(d DType) bool { return d == s.DType || s.Image != nil && d == Bytes }

// Sole returns the index of the input that a single value is for: the only one, or the only one
// that is not optional. -1: there is none.
func Sole(inputs []Spec) int {
	sole := -1
	for i := range inputs {
		switch {
		case len(inputs) > 1 && inputs[i].Optional:
		case sole >= 0:
			return -1
		default:
			sole = i
		}
	}
	return sole
}

// The formats of images, named as in Triton's model configuration. The shape of one row lacks N,
// the rows: FormatNHWC is [height, width, channels].
const (
	FormatNHWC = "FORMAT_NHWC"
	FormatNCHW = "FORMAT_NCHW"
)

// String returns a text like "boxes float32 [-1, 4], ragged by count" or "scores float32 [-1, 10],
// labels (10)".
func (s Spec) String() string {
	text := s.Name + " " + s.DType.String() + " " + s.Shape.String()
	if s.Optional {
		text += ", optional"
	}
	if s.Regions != "" {
		text += ", regions of " + s.Regions
	}
	if s.Ragged != "" {
		text += ", ragged by " + s.Ragged
	}
	if s.Format != "" {
		text += ", " + s.Format
	}
	if s.Image != nil {
		text += ", " + s.Image.String()
	}
	if len(s.Labels) > 0 {
		text += fmt.Sprintf(", labels (%d)", len(s.Labels))
	}
	return text
}

// New makes a Tensor of data, which it aliases and whose length must match d and s.
func New(d DType, s Shape, data []byte) (Tensor, error) {
	t := Tensor{DType: d, Shape: s, Data: data}
	return t, t.Check()
}

// Check returns an error unless dtype, shape and data agree.
func (t Tensor) Check() error {
	if !t.DType.Valid() {
		return fmt.Errorf("tensor: %s is not a dtype", t.DType)
	}
	n, ok := t.Shape.Elements()
	if !ok {
		return fmt.Errorf("tensor: shape %s has a negative dimension or too many elements", t.Shape)
	}
	if t.DType == Bytes {
		rest, err := skipElems(t.Data, n)
		if err == nil && len(rest) > 0 {
			err = fmt.Errorf("tensor: %d bytes after the last of %d elements of shape %s", len(rest), n, t.Shape)
		}
		return err
	}
	size := t.DType.Size()
	if n > int(maxInt)/size || n*size != len(t.Data) {
		return fmt.Errorf("tensor: %s of shape %s takes %d x %d bytes, got %d", t.DType, t.Shape, n, size, len(t.Data))
	}
	return nil
}

// Rows returns the size of the first dimension; 0 for a tensor without dimensions.
func (t Tensor) Rows() int {
	if len(t.Shape) == 0 {
		return 0
	}
	return t.Shape[0]
}

// Retain adds a reference to the memory behind t, if it is counted.
func (t Tensor) Retain() { t.Buf.Retain() }

// Release gives a reference back.
func (t Tensor) Release() { t.Buf.Release() }

// An Element is a Go type that the elements of a tensor can be read and written as. float16.Float16
// is from github.com/x448/float16. BFloat16, LongDouble and Bytes have no such type; see [Cast],
// [FromStrings] and [Strings].
type Element interface {
	bool | int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 |
		float16.Float16 | float32 | float64 | complex64 | complex128
}

// DTypeOf returns the DType whose elements are of type T.
func DTypeOf[T Element]() DType {
	switch any(*new(T)).(type) {
	case bool:
		return Bool
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	case float16.Float16:
		return Float16
	case float32:
		return Float32
	case float64:
		return Float64
	case complex64:
		return Complex64
	default:
		return Complex128
	}
}

// FromSlice makes a Tensor of the values, whose memory it aliases: a write to one shows in the
// other.
func FromSlice[T Element](shape Shape, values []T) (Tensor, error) {
	var data []byte
	if len(values) > 0 {
		data = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))),
			len(values)*int(unsafe.Sizeof(values[0])))
	}
	return New(DTypeOf[T](), shape, data)
}

// Values returns the elements of t as a slice that aliases its Data: the slice is valid as long as
// Data is, and may be written to only if t may be.
//
// It fails if T is not the type of t's elements, if a bool holds a byte other than 0 and 1 (the
// wire allows it, Go does not), and if Data is not aligned for T, which happens only to slices of
// other memory: the decoder, the pool and [Concat] make aligned tensors.
func Values[T Element](t Tensor) ([]T, error) {
	if d := DTypeOf[T](); d != t.DType {
		return nil, fmt.Errorf("tensor: expected a tensor of %s, got %s", d, t.DType)
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	if len(t.Data) == 0 {
		return []T{}, nil
	}
	if t.DType == Bool {
		for i, b := range t.Data {
			if b > 1 {
				return nil, fmt.Errorf("tensor: element %d is the byte %#02x, which is neither false nor true in Go", i, b)
			}
		}
	}
	p := unsafe.Pointer(unsafe.SliceData(t.Data))
	var zero T
	if uintptr(p)%unsafe.Alignof(zero) != 0 {
		return nil, fmt.Errorf("tensor: data of %s not aligned to %d bytes", t.DType, unsafe.Alignof(zero))
	}
	return unsafe.Slice((*T)(p), len(t.Data)/int(unsafe.Sizeof(zero))), nil
}

// FromStrings makes a Bytes tensor of the elements, which it copies.
func FromStrings(shape Shape, elems []string) (Tensor, error) {
	n := 0
	for _, s := range elems {
		n += lenBytes + len(s)
	}
	data := make([]byte, 0, n)
	for _, s := range elems {
		data = AppendElem(data, s)
	}
	return New(Bytes, shape, data)
}

// FromElems makes a Bytes tensor of the elements, which it copies to memory of the pool. The
// tensor's one reference is the caller's.
func FromElems(shape Shape, elems [][]byte, pool *Pool) (Tensor, error) {
	n := 0
	for _, e := range elems {
		n += lenBytes + len(e)
	}
	buf, err := pool.Get(n)
	if err != nil {
		return Tensor{}, err
	}
	data := buf.Bytes()[:0]
	for _, e := range elems {
		data = AppendElem(data, e)
	}
	t := Tensor{DType: Bytes, Shape: shape, Data: data, Buf: buf}
	if err := t.Check(); err != nil {
		t.Release()
		return Tensor{}, err
	}
	return t, nil
}

// AppendElem appends one element of a Bytes tensor: its length as 4 bytes, little-endian, then its
// bytes.
func AppendElem[S string | []byte](data []byte, elem S) []byte {
	data = binary.LittleEndian.AppendUint32(data, uint32(len(elem)))
	return append(data, elem...)
}

// Strings returns the elements of a Bytes tensor as strings, which it copies.
func Strings(t Tensor) ([]string, error) {
	elems, err := BytesElems(t)
	if err != nil {
		return nil, err
	}
	list := make([]string, len(elems))
	for i, e := range elems {
		list[i] = string(e)
	}
	return list, nil
}

// BytesElems returns the elements of a Bytes tensor as slices of its Data.
func BytesElems(t Tensor) ([][]byte, error) {
	if t.DType != Bytes {
		return nil, fmt.Errorf("tensor: expected a tensor of bytes, got %s", t.DType)
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	n, _ := t.Shape.Elements()
	list := make([][]byte, 0, n)
	for rest := t.Data; len(rest) > 0; {
		end := lenBytes + int(binary.LittleEndian.Uint32(rest))
		list = append(list, rest[lenBytes:end:end])
		rest = rest[end:]
	}
	return list, nil
}

// lenBytes is the size of the length before each element of a Bytes tensor.
const lenBytes = 4

// skipElems returns what follows the first n elements of a Bytes tensor's data.
func skipElems(data []byte, n int) ([]byte, error) {
	for i := range n {
		if len(data) < lenBytes {
			return nil, fmt.Errorf("tensor: bytes element %d of %d: %d bytes left for its length of %d", i, n,
				len(data), lenBytes)
		}
		size := binary.LittleEndian.Uint32(data)
		data = data[lenBytes:]
		if uint64(size) > uint64(len(data)) {
			return nil, fmt.Errorf("tensor: bytes element %d of %d announces %d bytes, %d are left", i, n, size,
				len(data))
		}
		data = data[size:]
	}
	return data, nil
}
