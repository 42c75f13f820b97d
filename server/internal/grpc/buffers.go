package grpc

import "sync"

// writeBuffer is how many bytes of answers grpc-go writes to a socket at a time. A TCP segment to a
// client on this machine has 65,483 bytes: a buffer of 64 KiB leaves as one full segment and one of
// 53 bytes, and buffers of 32 KiB, grpc-go's default, take twice as many segments. Buffers are
// shared: a connection that has nothing to write holds none.
const writeBuffer = 60 << 10

// bufferSizes fit the frames of HTTP/2: small ones, and the largest that grpc-go allows.
var bufferSizes = [...]int{4 << 10, 16 << 10}

// buffers is the memory that grpc-go reads frames into. grpc-go's own pool would clear each buffer
// first.
type buffers [len(bufferSizes)]sync.Pool

// Get returns n bytes with undefined contents.
func (b *buffers) Get(n int) *[]byte {
	for i, size := range bufferSizes {
		if n > size {
			continue
		}
		p, ok := b[i].Get().(*[]byte)
		if !ok {
			fresh := make([]byte, size)
			p = &fresh
		}
		*p = (*p)[:n]
		return p
	}
	p := make([]byte, n)
	return &p
}

// Put takes back the bytes of Get.
func (b *buffers) Put(p *[]byte) {
	for i, size := range bufferSizes {
		if cap(*p) == size {
			b[i].Put(p) // another goroutine may own p from here on
			return
		}
	}
}
