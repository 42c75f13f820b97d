package regions

import (
	"fmt"
	"math"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/parameter"
	"github.com/shivad/shivad/shiva/tensor"
)

// Fetch is [Hold.Fetch] from a place that is held only meanwhile.
func (g *Registry) Fetch(client Client, t *tensor.Tensor, p parameter.Place, left int64,
	get func(size int) (*tensor.Buffer, error)) error {
	h, err := g.HoldInput(client, t.Name, p)
	if err != nil {
		return err
	}
	defer h.Release()
	return h.Fetch(t, left, get)
}

// Fetch reads the data of an input, whose name, dtype and shape are set, from the place into memory
// from get, whose errors it returns unchanged. left is how many bytes the request may still add.
// After an error the input may have memory, which the caller must release.
func (h Hold) Fetch(t *tensor.Tensor, left int64, get func(size int) (*tensor.Buffer, error)) error {
	p := h.place
	elements, ok := t.Shape.Elements()
	size := t.DType.Size() // 0: it varies, and Check verifies it
	if !ok || size > 0 && elements > math.MaxInt/size {
		return fault.Invalid("input %q: %s of shape %s has more bytes than can be counted", t.Name, t.DType.V2(),
			t.Shape)
	}
	switch {
	case size > 0 && p.Size != int64(elements*size):
		return fault.Invalid("input byte size mismatch for input '%s': expected %d for %s of shape %s, got shared_memory_byte_size %d",
			t.Name, elements*size, t.DType.V2(), t.Shape, p.Size)
	case p.Size > left:
		return fmt.Errorf("%w: input %q has %d bytes in shared memory, with which the request exceeds limits.message_bytes: %d bytes were left",
			scheduler.ErrTooLarge, t.Name, p.Size, max(left, 0))
	}
	buf, err := get(int(p.Size))
	if err != nil {
		return err
	}
	t.Buf, t.Data = buf, buf.Bytes()
	if err := h.read(t.Data); err != nil {
		return naming("input", t.Name, unusable{err})
	}
	if err := t.Check(); err != nil {
		return fault.Invalid("input %q, in shared memory region '%s': %w", t.Name, p.Region, err)
	}
	return nil
}

// Put writes an output to the beginning of the place, and returns the part that it takes.
func (h Hold) Put(t *tensor.Tensor) (parameter.Place, error) {
	p := h.place
	if int64(len(t.Data)) > p.Size {
		return p, fault.Invalid("shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
			t.Name, p.Size, len(t.Data))
	}
	p.Size = int64(len(t.Data))
	return p, naming("output", t.Name, h.write(t.Data))
}

// naming adds to an error the tensor that it concerns, if there is one.
func naming(what, name string, err error) error {
	if err == nil || name == "" {
		return err
	}
	return fmt.Errorf("%w (%s %q)", err, what, name)
}
