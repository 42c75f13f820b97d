package tensor

import "math/bits"

// The memory of a body grows as its bytes arrive, so that announcing a body costs its receiver
// nothing. The stage sizes are derived from the whole body downwards, each a StageFactor-th of the
// next larger one: a body never has more than StageFactor times the memory that its bytes fill,
// plus 16 KiB, and all the copying from stage to stage adds up to a seventh of the body. Derived
// upwards, the last size could be StageFactor times the body; doubling copies every byte once.
const (
	StageFactor   = 8
	minStageBytes = 2 << 10
	stageAlign    = 16 // whole elements of any dtype, for receivers that swap them on arrival
)

// Stage returns the size of the memory for a body of whole bytes when its first least bytes need
// room: those that have arrived, or are about to. The size is the smallest that holds them among
// whole and its quotients by powers of factor, and at least 2 KiB. So a body whose bytes have all
// arrived gets all of its memory at once. A whole that is less than least, such as 0, means an
// unknown size: then the sizes are powers of two.
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

// Grow replaces b by a buffer of size bytes that begins with the first n bytes of b, and releases
// b, which may be nil. It fails as Get does, and then b stays the caller's.
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
