// Package tensor defines terms that every package of the server shares: the dense array, its
// element types, and the ownership of its bytes.
//
// # Data
//
// A [Tensor] is a name, a [DType], a [Shape] and the elements' bytes. The bytes are in the byte
// order of the host and in C order (last dimension fastest); the big-endian order of the Shiva wire
// exists only on that wire, and [SwapCopy] converts between the two during the one copy that each
// byte needs anyway. The first dimension is the batch dimension: its items are rows, rows are
// contiguous, and [Tensor.RowSlice] and [Concat] cut and join along it.
//
// # Memory
//
// The type shows the owner of bytes: a [Buffer] is reference-counted, starts with one reference and
// returns to its [Pool] when the last one is released. A Tensor that carries a Buffer does not by
// itself hold a reference: to keep a copy of a Tensor past the life of the original, call
// [Tensor.Retain], and [Tensor.Release] when done. A nil Buffer means ordinary memory of the
// garbage collector, for which both calls do nothing.
//
// A program built with -tags invariants overwrites released bytes with 0xDB, never hands them out
// again, panics on a second release and on use after release, and records the stack that took each
// buffer ([Outstanding]).
//
// # Concurrency
//
// A Pool and the reference counts may be used from any goroutine. Nothing else here is
// synchronised: any number of goroutines may read the bytes of a Tensor as long as none writes.
package tensor
