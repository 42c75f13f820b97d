package tensor

import "sync/atomic"

// A Buffer is a piece of reference-counted memory. [Pool.Get] returns it with one reference, and it
// goes back to the pool when the last one is released.
//
// Retain and Release may be called from any goroutine, and on a nil Buffer, where they do nothing.
type Buffer struct {
	data []byte // the whole class; data[:n] was requested
	n    int

	pool  *Pool  // nil: memory of the garbage collector, or the lender's
	owner Lender // gets the memory back; nil: the pool
	class int    // index into the pool's classes; unpooled above the largest
	trace trace  // the stack that took it; empty unless built with invariants

	refs atomic.Int32
}

// A Lender owns memory that belongs to no pool.
type Lender interface {
	// Put takes back the bytes given to Lend. It is called on the goroutine that released the last
	// reference to their buffer.
	Put(mem []byte)
}

// Lend makes a buffer of the owner's memory, with one reference. It counts in no pool's budget.
func Lend(mem []byte, owner Lender) *Buffer {
	b := &Buffer{data: mem, n: len(mem), owner: owner, class: foreignClass}
	b.refs.Store(1)
	b.trace.take()
	return b
}

// A Violation is the panic value of the strict build when memory or a call is misused. Code that
// recovers from panics must re-panic with it: it must end the program.
type Violation string

// Bytes returns the memory, in the size that was requested. Its contents are undefined until
// written. It must not be used after the last reference is released.
func (b *Buffer) Bytes() []byte {
	if Invariants && b.refs.Load() <= 0 {
		panic(Violation("tensor: bytes of a released buffer" + b.trace.String()))
	}
	return b.data[:b.n]
}

// Size returns the number of bytes that b takes from its pool's budget: the size of its class,
// which is at least the size that was requested.
func (b *Buffer) Size() int { return len(b.data) }

// Retain adds a reference. Another reference must be held during the call.
func (b *Buffer) Retain() {
	if b == nil {
		return
	}
	if n := b.refs.Add(1); Invariants && n <= 1 {
		panic(Violation("tensor: retain of a released buffer" + b.trace.String()))
	}
}

// Shared reports whether there are references other than the caller's own.
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

// Lent reports whether the memory belongs to a [Lender], who may be waiting for it. b may be nil.
func (b *Buffer) Lent() bool { return b != nil && b.owner != nil }
