package tensor

import (
	"encoding/binary"
	"math/bits"
)

// SwapCopy copies src to dst and reverses the bytes of each unit of width bytes: from big-endian to
// little-endian or the other way. Width is 1 (a plain copy), 2, 4, 8 or 16. len(src) must be a multiple
// of it, and dst at least as long. dst and src may be the same slice, but not overlap otherwise.
//
// It is written to cost no more than the copy that the bytes need anyway. One unit after the other with
// encoding/binary reaches an eighth of the speed of copy; the vector kernels (AVX2 on amd64, found at run
// time) reach it, and the fallback, eight bytes in a register whatever the width, about half.
func SwapCopy(dst, src []byte, width int) {
	dst = dst[:len(src)] // panics like copy would not: a short dst is a caller's error
	switch width {
	case 1:
		copy(dst, src)
		return
	case 2, 4, 8, 16:
	default:
		panic("tensor: no units of that width to swap")
	}
	if len(src)%width != 0 {
		panic("tensor: part of a unit at the end of the bytes to swap")
	}
	if n := swapVector(dst, src, width); n > 0 {
		dst, src = dst[n:], src[n:]
	}
	swapWords(dst, src, width)
}

// swapWords is the portable kernel: whole 64-bit words, then what is left of one.
func swapWords(dst, src []byte, width int) {
	le := binary.LittleEndian
	switch width {
	case 2:
		for len(src) >= 8 && len(dst) >= 8 {
			v := le.Uint64(src)
			const low = 0x00ff00ff00ff00ff
			le.PutUint64(dst, v>>8&low|v&low<<8)
			src, dst = src[8:], dst[8:]
		}
		for len(src) >= 2 && len(dst) >= 2 {
			src0, src1 := src[0], src[1]
			dst[0], dst[1] = src1, src0
			src, dst = src[2:], dst[2:]
		}
	case 4:
		for len(src) >= 8 && len(dst) >= 8 {
			le.PutUint64(dst, bits.RotateLeft64(bits.ReverseBytes64(le.Uint64(src)), 32))
			src, dst = src[8:], dst[8:]
		}
		if len(src) >= 4 && len(dst) >= 4 {
			le.PutUint32(dst, bits.ReverseBytes32(le.Uint32(src)))
		}
	case 8:
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
