package tensor

import (
	"encoding/binary"
	"math/bits"
)

// SwapCopy copies src to dst and reverses the bytes of each unit of width bytes: from big-endian to
// little-endian or the other way. Width is 1 (a plain copy), 2, 4, 8 or 16. len(src) must be a
// multiple of width, and dst at least as long. dst and src may be the same slice, but must not
// overlap otherwise.
//
// SwapCopy is written to cost no more than the copy that the bytes need anyway. One unit after the
// other with encoding/binary reaches an eighth of the speed of copy; the vector kernels (AVX2 and
// AVX-512 on amd64, detected at run time, NEON on arm64) reach its full speed, and the portable
// one, eight bytes in a register whatever the width, a third. The build tag purego leaves only the
// portable one.
func SwapCopy(dst, src []byte, width int) {
	swap(dst, src, width, false)
}

// SwapThrough is SwapCopy for a piece of a tensor that is larger than the caches. On amd64 it
// writes past the caches to memory: lines that would be evicted before they are read need not be
// loaded to be overwritten, and do not evict others. It then takes about 0.6 of the time. The piece
// should itself be in the caches, and be kilobytes long: bytes outside whole cache lines of dst are
// written like SwapCopy's.
func SwapThrough(dst, src []byte, width int) {
	swap(dst, src, width, true)
}

// swap checks its arguments, swaps as much as it can with a vector kernel, and the rest with the
// portable one.
func swap(dst, src []byte, width int, through bool) {
	dst = dst[:len(src)] // a short dst is the caller's error: panic, which copy would not
	switch width {
	case 1:
		if len(src) < minVectorCopyBytes {
			copy(dst, src)
			return
		}
	case 2, 4, 8, 16:
	default:
		panic("tensor: no units of that width to swap")
	}
	if len(src)%width != 0 {
		panic("tensor: part of a unit at the end of the bytes to swap")
	}
	vector := 0
	if through {
		vector = swapThrough(dst, src, width)
	} else {
		vector = swapVector(dst, src, width)
	}
	swapWords(dst[vector:], src[vector:], width)
}

// minVectorCopyBytes is the size from which the runtime copies with REP MOVSB if source and
// destination differ in alignment, as wire and memory nearly always do: up to 64 KiB, 3.5 times
// slower than the vector kernel with the identity shuffle.
const minVectorCopyBytes = 2 << 10

// swapWords is the portable kernel: 64-bit words, four at a time while there are four (twice as
// fast as one by one), then the rest.
func swapWords(dst, src []byte, width int) {
	le := binary.LittleEndian
	switch width {
	case 1:
		copy(dst, src)
	case 2:
		const low = 0x00ff00ff00ff00ff
		for len(src) >= 32 && len(dst) >= 32 {
			a, b, c, d := le.Uint64(src), le.Uint64(src[8:]), le.Uint64(src[16:]), le.Uint64(src[24:])
			le.PutUint64(dst, a>>8&low|a&low<<8)
			le.PutUint64(dst[8:], b>>8&low|b&low<<8)
			le.PutUint64(dst[16:], c>>8&low|c&low<<8)
			le.PutUint64(dst[24:], d>>8&low|d&low<<8)
			src, dst = src[32:], dst[32:]
		}
		for len(src) >= 2 && len(dst) >= 2 {
			src0, src1 := src[0], src[1]
			dst[0], dst[1] = src1, src0
			src, dst = src[2:], dst[2:]
		}
	case 4:
		for len(src) >= 32 && len(dst) >= 32 {
			a, b, c, d := le.Uint64(src), le.Uint64(src[8:]), le.Uint64(src[16:]), le.Uint64(src[24:])
			le.PutUint64(dst, bits.RotateLeft64(bits.ReverseBytes64(a), 32))
			le.PutUint64(dst[8:], bits.RotateLeft64(bits.ReverseBytes64(b), 32))
			le.PutUint64(dst[16:], bits.RotateLeft64(bits.ReverseBytes64(c), 32))
			le.PutUint64(dst[24:], bits.RotateLeft64(bits.ReverseBytes64(d), 32))
			src, dst = src[32:], dst[32:]
		}
		for len(src) >= 8 && len(dst) >= 8 {
			le.PutUint64(dst, bits.RotateLeft64(bits.ReverseBytes64(le.Uint64(src)), 32))
			src, dst = src[8:], dst[8:]
		}
		if len(src) >= 4 && len(dst) >= 4 {
			le.PutUint32(dst, bits.ReverseBytes32(le.Uint32(src)))
		}
	case 8:
		for len(src) >= 32 && len(dst) >= 32 {
			a, b, c, d := le.Uint64(src), le.Uint64(src[8:]), le.Uint64(src[16:]), le.Uint64(src[24:])
			le.PutUint64(dst, bits.ReverseBytes64(a))
			le.PutUint64(dst[8:], bits.ReverseBytes64(b))
			le.PutUint64(dst[16:], bits.ReverseBytes64(c))
			le.PutUint64(dst[24:], bits.ReverseBytes64(d))
			src, dst = src[32:], dst[32:]
		}
		for len(src) >= 8 && len(dst) >= 8 {
			le.PutUint64(dst, bits.ReverseBytes64(le.Uint64(src)))
			src, dst = src[8:], dst[8:]
		}
	case 16:
		for len(src) >= 16 && len(dst) >= 16 {
			lo, hi := le.Uint64(src), le.Uint64(src[8:])
			le.PutUint64(dst, bits.ReverseBytes64(hi))
			le.PutUint64(dst[8:], bits.ReverseBytes64(lo))
			src, dst = src[16:], dst[16:]
		}
	}
}
