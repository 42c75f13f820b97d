package tensor

import "sync/atomic"

// A Buffer is a piece of memory with counted references. It comes from [Pool.Get] with one
// reference and goes back when the last is released.
//
// Retain and Release may be called from any goroutine, and on a nil Buffer, where they do nothing.
type Buffer struct {
	data []byte // the whole class; data[:n] was requested
	n    int

	pool  *Pool  // nil: memory of the garbage collector, or the lender's
	owner Lender // who gets the memory back; nil: the pool
	class int    // index into the pool's classes; unpooled above the largest
	trace trace  // who took it; empty unless built with invariants

	refs atomic.Int32
}

// A Lender owns memory that is no pool's.
type Lender interface {
	// Put gets the bytes of Lend back, when the last reference to their buffer was released, on the
	// goroutine that released it.
	Put(mem []byte)
}

// Lend makes a buffer of memory of somebody else, with one reference. It counts in no pool's
// budget.
func Lend(mem []byte, owner Lender) *Buffer {
	b := &Buffer{data: mem, n: len(mem), owner: owner, class: elsewhere}
	b.refs.Store(1)
	b.trace.take()
	return b
}

// A Violation is what the strict build panics with when memory or a call is used out of turn.
// Whoever recovers from the panics of others lets it pass: it is to end the program.
type Violation string

// Bytes is the memory, of the size that was requested. Its contents are undefined until written.
// It must not be used after the last reference was released.
func (b *Buffer) Bytes() []byte {
	if Invariants && b.refs.Load() <= 0 {
		panic(Violation("tensor: bytes of a released buffer" + b.trace.String()))
	}
	return b.data[:b.n]
}

// Size is the number of bytes that b takes of its pool's budget: that of its class, at least as
// many as were requested.
func (b *Buffer) Size() int { return len(b.data) }

// Retain adds a reference. The caller must be sure to be covered by one already.
func (b *Buffer) Retain() {
	if b == nil {
		return
	}
	if n := b.refs.Add(1); Invariants && n <= 1 {
		panic(Violation("tensor: retain of a released buffer" + b.trace.String()))
	}
}

// Shared reports whether there are references beside the caller's own.
func (b *Buffer) Shared() bool { return b.refs.Load() > 1 }

// Release gives a reference back; with the last one the memory goes to the pool.
func (b *Buffer) Release() {
	if b == nil {
		return
	}
	n := b.refs.Add(-1)
	if n > 0 {
		return
	}
	if Invariants {
		if n < 0 {
			panic(Violation("tensor: second release of a buffer" + b.trace.String()))
		}
		poison(b.data)
	}
	switch {
	case b.owner != nil:
		b.owner.Put(b.data)
	case b.pool != nil:
		b.pool.put(b)
	}
}
