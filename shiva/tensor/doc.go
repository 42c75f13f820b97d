// Package tensor has the words that every room of the server shares: what a dense array is, which
// element types there are, and who owns the bytes behind one.
//
// # Data
//
// A [Tensor] is a name, a [DType], a [Shape] and the elements' bytes. The bytes are in the byte
// order of the host and in C order (last dimension fastest); the big-endian order of the Shiva
// wire exists only on that wire, and [SwapCopy] goes between the two inside the one copy that a
// byte needs anyway. The first dimension is the batch dimension: its items are rows, rows are
// contiguous, and [Tensor.RowSlice] and [Concat] cut and join along it.
//
// # Memory
//
// Bytes have an owner in the type: a [Buffer] is counted, starts with one reference and goes
// back to its [Pool] when the last one is released. A Tensor that carries a Buffer does not by
// itself hold a reference: whoever keeps a copy of the Tensor past the life of the one it was
// copied from calls [Tensor.Retain], and [Tensor.Release] when done. A nil Buffer means
// ordinary memory of the garbage collector, for which both are free.
//
// A program built with -tags invariants overwrites released bytes with 0xDB, never hands them
// out again, panics on a second release and on use after release, and remembers who took what
// ([Outstanding]).
//
// # Concurrency
//
// A Pool and the reference counts may be used from any goroutine. Nothing else here is
// synchronised: the bytes of a Tensor may be read by many as long as nobody writes.
package tensor
