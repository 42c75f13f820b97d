package tensor

// A Tensor is a dense array: a dtype, a shape and the elements' bytes.
//
// Data is in the byte order of the host and in C order (last dimension fastest); len(Data) is
// Shape.Elements()*DType.Size(). A Bytes tensor holds each element as a 4-byte little-endian length and
// then its bytes, as the Predict Protocol V2 does.
//
// A Tensor is a small value that may be copied; copies share Data. Buf, when it is not nil, owns the
// memory behind Data: whoever keeps a copy past the life of the original takes a reference with Retain
// and gives it back with Release.
type Tensor struct {
	Name  string
	DType DType
	Shape Shape
	Data  []byte
	Buf   *Buffer
}

// A Spec is what a model declares of one input or output. A dimension of -1 takes any size; when the
// first dimension is -1 it is the batch dimension.
type Spec struct {
	Name  string
	DType DType
	Shape Shape
}
