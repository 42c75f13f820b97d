package grpc

import "sync"

// writeBuffer is how much of answers grpc-go writes to a socket at a time. To a client on this
// machine a segment of TCP has 65,483 bytes: a buffer of 64 KiB leaves as a full one and one of 53
// bytes, and of 32 KiB, grpc-go's own, in twice as many. Buffers are shared: a connection that has
// nothing to write has none.
const writeBuffer = 60 << 10

// bufferSizes are those of frames of HTTP/2: small ones, and the largest that grpc-go allows.
var bufferSizes = [...]int{4 << 10, 16 << 10}

// buffers is the memory that grpc-go reads frames into. Its own pool clears each buffer before it
// is read into.
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

// Put takes the bytes of Get back.
func (b *buffers) Put(p *[]byte) {
	for i, size := range bufferSizes {
		if cap(*p) == size {
			b[i].Put(p) // p may be somebody else's from here on
			return
		}
	}
}
