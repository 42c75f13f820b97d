package arena

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"
)

const (
	// tokenSize is the size of the token at the beginning of a segment, by which a container knows
	// that it has opened the right file.
	tokenSize = 16
	// headSize is the first page, where no tensor lies.
	headSize = 4096
	// wordSize is the distance from the word of a region of outputs to its tensor: a cache line.
	wordSize = 64
)

// lastNumber counts the segments of the process.
var lastNumber atomic.Int64

// A Segment is a piece of memory that containers can map. It stays until the last reference is
// released: its maker has one, each session that maps it has one, and each buffer in it.
type Segment struct {
	Number int64
	Path   string // where other processes open it
	Token  string // its first bytes, in hexadecimal

	fd        atomic.Int64 // -1: hidden
	mem       []byte
	refs      atomic.Int64
	onRelease func()
}

func (s *Segment) open(bytes int64, writable bool, gone func()) error {
	var token [tokenSize]byte
	rand.Read(token[:]) // cannot fail
	fd, mem, err := create(bytes, token[:], writable)
	if err != nil {
		return err
	}
	s.fd.Store(int64(fd))
	s.mem = mem
	s.Number, s.Token, s.onRelease = lastNumber.Add(1), hex.EncodeToString(token[:]), gone
	s.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	s.refs.Store(1)
	return nil
}

// Size is the number of bytes to map.
func (s *Segment) Size() int64 { return int64(len(s.mem)) }

// Retain adds a reference. The caller must be sure to be covered by one already.
func (s *Segment) Retain() { s.refs.Add(1) }

// Release gives up a reference; with the last one the memory returns to the system, unless a
// container still maps it.
func (s *Segment) Release() {
	if s.refs.Add(-1) == 0 {
		s.Hide()
		Unmap(s.mem)
		s.onRelease()
	}
}

// Hide closes the path. The caller has a reference, and all processes that need the segment map it.
func (s *Segment) Hide() {
	if fd := s.fd.Swap(-1); fd >= 0 {
		shut(int(fd))
	}
}

// Region returns the bytes of a tensor, which is not empty, in a segment of outputs, with a
// reference to the segment that Put releases; false if they do not lie in the segment. Their
// contents may change at any time.
func (s *Segment) Region(offset, size int64) ([]byte, bool) {
	if offset < headSize+wordSize || offset%wordSize != 0 || size < 1 || offset > s.Size() || size > s.Size()-offset {
		return nil, false
	}
	s.Retain()
	return s.mem[offset : offset+size : offset+size], true
}

// Put tells the container that the server reads a region no more. Any goroutine may call it.
func (s *Segment) Put(region []byte) {
	word := (*uint32)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(region)), -wordSize))
	atomic.StoreUint32(word, 0)
	s.Release()
}

// offset returns the offset of data, which is not empty, in the segment; -1 if data lies elsewhere.
func (s *Segment) offset(data []byte) int64 {
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(data))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.mem))))
	if at < 0 || at >= s.Size() {
		return -1
	}
	return at
}
