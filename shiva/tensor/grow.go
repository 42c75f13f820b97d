package tensor

import "math/bits"

// The memory of a body grows as its bytes arrive, so that announcing one costs its receiver
// nothing. The sizes are counted down from the whole body, each a StageFactor-th of the one above:
// a body never has more than StageFactor times the memory that its bytes fill, and 16 KiB, and
// all the copying from stage to stage adds up to a seventh of it. Counted up from the bottom, the
// last size would be up to StageFactor times the body; doubling copies every byte once.
const (
	StageFactor   = 8
	minStageBytes = 2 << 10
	stageAlign    = 16 // whole elements of any dtype, for who puts them in order as they come
)

// Stage returns the size that the memory of a body of whole bytes should have when the first
// least of them need a place: those that have arrived, or are about to. It is the smallest that
// holds them among whole and its parts by powers of factor, and 2 KiB at least. So a body whose
// bytes are all there gets its memory at once. A whole of 0, or less than least, is not known:
// then the sizes are powers of two.
func Stage(least, whole, factor int) int {
	if whole < least {
		return max(1<<bits.Len(uint(least-1)), minClassBytes)
	}
	size := whole
	for least = max(least, minStageBytes); size/factor >= least; {
		size /= factor
	}
	return min((size+stageAlign-1)&^(stageAlign-1), whole)
}

// Grow exchanges b for a buffer of size bytes that begins with the first n bytes of b, and
// releases b, which may be nil. It fails as Get does, and then b stays the caller's.
func (p *Pool) Grow(b *Buffer, n, size int) (*Buffer, error) {
	larger, err := p.Get(size)
	if err != nil {
		return nil, err
	}
	if b != nil {
		copy(larger.Bytes(), b.Bytes()[:n])
		b.Release()
	}
	return larger, nil
}
