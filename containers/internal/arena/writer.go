package arena

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// A Writer divides a segment of outputs, in the container that maps it, into regions for tensors.
// Its methods may be called from any goroutine.
type Writer struct {
	mem []byte

	mu      sync.Mutex
	space   space
	regions []extent // regions that were in use at the last look, with their words
}

// NewWriter makes a Writer of memory from Map, which must have no other Writer.
func NewWriter(mem []byte) *Writer {
	return &Writer{mem: mem, space: newSpace(headSize, int64(len(mem)))}
}

// Get returns n bytes for a tensor, at least one, whose contents are undefined; nil if there is no
// room. They are the caller's until the server has freed them, or Put.
func (w *Writer) Get(n int) []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	size := (wordSize + int64(n) + wordSize - 1) &^ (wordSize - 1)
	at, ok := w.space.take(size, int64(len(w.mem)))
	if !ok {
		w.collectLocked()
		if at, ok = w.space.take(size, int64(len(w.mem))); !ok {
			return nil
		}
	}
	atomic.StoreUint32(w.word(at), 1)
	w.regions = append(w.regions, extent{at, at + size})
	return w.mem[at+wordSize : at+wordSize+int64(n) : at+wordSize+int64(n)]
}

// collectLocked takes back the regions that have been freed.
func (w *Writer) collectLocked() {
	still := w.regions[:0]
	for _, r := range w.regions {
		if atomic.LoadUint32(w.word(r.lo)) == 0 {
			w.space.give(r.lo, r.hi-r.lo)
		} else {
			still = append(still, r)
		}
	}
	w.regions = still
}

func (w *Writer) word(at int64) *uint32 { return (*uint32)(unsafe.Pointer(&w.mem[at])) }

// Offset returns the offset in the segment of the bytes of a Get.
func (w *Writer) Offset(data []byte) int64 {
	return int64(uintptr(unsafe.Pointer(unsafe.SliceData(data))) - uintptr(unsafe.Pointer(unsafe.SliceData(w.mem))))
}

// Put frees the bytes of a Get that no result names.
func (w *Writer) Put(data []byte) { atomic.StoreUint32(w.word(w.Offset(data)-wordSize), 0) }
