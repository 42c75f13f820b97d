package cache

import (
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/shiva/tensor"
)

// An entry is a cached answer. It is immutable except for its reference count: the table holds a
// reference, and so do callers that are about to copy its outputs. The last release frees the
// buffer; answers made from it hold their own references.
type entry struct {
	version *Version
	outputs []tensor.Tensor // views of buf
	buf     *tensor.Buffer
	bytes   int64 // what it counts towards the bound
	refs    atomic.Int32
}

const (
	// entryBytes is what an entry takes besides its buffer and its outputs: the entry, the buffer's
	// header and the table's node. TestEntryBytes measures it.
	entryBytes  = 256
	outputBytes = int64(unsafe.Sizeof(tensor.Tensor{}))

	// alignment of outputs in an entry's buffer: that of the largest element, complex128.
	alignment = 16
)

// newEntry copies outputs, with one reference for the caller. nil: the outputs are too large to be
// cached, or the pool is exhausted.
func (k *Cache) newEntry(v *Version, outputs []tensor.Tensor) *entry {
	size, bytes := 0, int64(entryBytes)
	for i := range outputs {
		size = align(size) + len(outputs[i].Data)
		bytes += outputBytes + 8*int64(len(outputs[i].Shape))
	}
	// The table's weights have 32 bits.
	if most := min(k.limit.Load(), math.MaxUint32); bytes+int64(size) > most {
		v.counts.NotKept.Add(1)
		return nil
	}
	buf, err := k.pool.Get(size)
	if err != nil {
		v.counts.NotKept.Add(1)
		return nil
	}
	e := &entry{version: v, outputs: make([]tensor.Tensor, len(outputs)), buf: buf, bytes: bytes + int64(buf.Size())}
	e.refs.Store(1)
	data, at := buf.Bytes(), 0
	for i, t := range outputs {
		at = align(at)
		end := at + copy(data[at:], t.Data)
		t.Data, t.Buf, t.Shape = data[at:end:end], buf, slices.Clone(t.Shape)
		e.outputs[i] = t
		at = end
	}
	return e
}

func align(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// acquire takes a reference, unless the last one was released: an entry may be evicted just after a
// look-up found it.
func (e *entry) acquire() bool {
	for {
		n := e.refs.Load()
		if n == 0 {
			return false
		}
		if e.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (e *entry) release() {
	if e.refs.Add(-1) == 0 {
		e.buf.Release()
	}
}

// give makes outputs the answer of r, with a reference for each. The shapes are shared.
func give(r *scheduler.Request, outputs []tensor.Tensor) {
	for i := range outputs {
		outputs[i].Retain()
	}
	r.Outputs = append(r.Outputs[:0], outputs...)
	r.Err, r.Timing = nil, scheduler.Timing{}
}

// fail makes err the answer of r.
func fail(r *scheduler.Request, err error) {
	r.Outputs, r.Err, r.Timing = r.Outputs[:0], err, scheduler.Timing{}
}
