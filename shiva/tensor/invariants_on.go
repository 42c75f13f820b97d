//go:build invariants

package tensor

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
)

// Invariants reports whether this is the strict build (-tags invariants): released bytes are
// overwritten and not handed out again, misuse of a reference count panics, and the pool records
// the stack that took each buffer. With SHIVA_INVARIANTS=off in the environment it is false, so
// that the same build can also test the reuse of buffers, without a second compilation.
var Invariants = os.Getenv("SHIVA_INVARIANTS") != "off"

// poisonByte fills released memory: invalid as UTF-8, invalid as a bool, an odd number in any
// dtype.
const poisonByte = 0xDB

// poison doubles the overwritten part with each copy: byte by byte, the race detector checks each
// byte, which took half of its time.
func poison(b []byte) {
	for n := copy(b, []byte{poisonByte}); n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// A trace is the stack of the call that took a buffer.
type trace struct {
	pcs [24]uintptr
	n   int
}

func (t *trace) take() { t.n = runtime.Callers(3, t.pcs[:]) }

func (t *trace) String() string {
	var sb strings.Builder
	sb.WriteString("; it was taken by")
	frames := runtime.CallersFrames(t.pcs[:t.n])
	for {
		f, more := frames.Next()
		fmt.Fprintf(&sb, "\n\t%s %s:%d", f.Function, f.File, f.Line)
		if !more {
			return sb.String()
		}
	}
}

// books lists the buffers in use.
type books struct {
	mu  sync.Mutex
	out map[*Buffer]struct{}
}

func (k *books) add(b *Buffer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.out == nil {
		k.out = make(map[*Buffer]struct{})
	}
	k.out[b] = struct{}{}
}

func (k *books) remove(b *Buffer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.out, b)
}

// Outstanding describes the buffers of p that are in use, one text each, with the stack that took
// it. Without -tags invariants it returns nil; [Pool.InUse] is always available.
func Outstanding(p *Pool) []string {
	if p == nil {
		return nil
	}
	p.books.mu.Lock()
	defer p.books.mu.Unlock()
	var list []string
	for b := range p.books.out {
		list = append(list, fmt.Sprintf("%d bytes, %d references%s", b.n, b.refs.Load(), b.trace.String()))
	}
	return list
}
