package grpc

import (
	"runtime"
	"sync"
	"testing"
)

// TestBuffers: a buffer has the requested size, whatever it had before, and the pools keep only
// buffers of their own sizes.
func TestBuffers(t *testing.T) {
	var b buffers
	for range 2 {
		for n, room := range map[int]int{1: 4 << 10, 4 << 10: 4 << 10, 4<<10 + 1: 16 << 10, 16 << 10: 16 << 10,
			16<<10 + 1: 16<<10 + 1} {
			p := b.Get(n)
			if len(*p) != n || cap(*p) < room {
				t.Errorf("%d bytes: %d of %d, expected room for %d", n, len(*p), cap(*p), room)
			}
			*p = (*p)[:n/2]
			b.Put(p)
		}
		foreign := make([]byte, 5<<10)
		b.Put(&foreign)
	}
}

// TestBuffersContend: a buffer that was put back may be reused by another goroutine at once, as the
// race detector sees.
func TestBuffersContend(t *testing.T) {
	var b buffers
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				p := b.Get(100)
				(*p)[0]++
				b.Put(p)
				runtime.Gosched()
			}
		})
	}
	all.Wait()
}
