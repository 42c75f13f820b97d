package rest

import (
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/shiva/jsontensor"
	"github.com/shivad/shivad/shiva/tensor"
)

// data reads a tensor's data, an array of all elements or arrays nested like its shape, into the
// memory of into, whose size matches shape and dtype. For Bytes it appends to that memory, which
// has room.
func (t *text) data(what func() string, into *tensor.Tensor) {
	t.Peek()
	start := t.At
	done, ok := t.Array(into.Shape, jsontensor.Elements(into))
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

// explain fails and names the fault in data of which only the first done elements could be read. It
// reads all of the data again, at the expense of the client that sent the fault.
func (t *text) explain(what func() string, into *tensor.Tensor, done int) {
	if raw := t.dataText(); raw != nil {
		t.Fail(fault.Invalid("%s: %v", what(), jsontensor.Fault(raw, into.DType, into.Shape, done)))
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
