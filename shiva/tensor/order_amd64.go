//go:build !purego

package tensor

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// vectors are the instructions that the processor and the operating system have.
type vectors uint8

const (
	noVectors vectors = iota
	avx2
	avx512 // with bytes and words (BW)
)

// The race detector does not see what assembly touches, and the bytes of tensors are where it
// is needed most: with it, the portable kernel works.
var best = func() vectors {
	switch {
	case raceEnabled:
		return noVectors
	case cpu.X86.HasAVX512BW:
		return avx512
	case cpu.X86.HasAVX2:
		return avx2
	default:
		return noVectors
	}
}()

// line is a line of the caches, and the vector of AVX-512.
const line = 64

// swapVector swaps as much of src as fills whole vectors and tells how many bytes that was.
func swapVector(dst, src []byte, width int) (n int) {
	if best == avx512 && len(src) >= line {
		n = len(src) &^ (line - 1)
		swapAVX512(&dst[0], &src[0], n, &shuffles[width])
	}
	if rest := (len(src) - n) &^ (line/2 - 1); rest > 0 && best >= avx2 {
		swapAVX2(&dst[n], &src[n], rest, &shuffles[width])
		n += rest
	}
	return n
}

// swapThrough is swapVector with stores that go past the caches, from the first line of dst to its
// last whole one.
func swapThrough(dst, src []byte, width int) (n int) {
	const least = 16 * line
	head := int(-uintptr(unsafe.Pointer(unsafe.SliceData(dst))) & (line - 1))
	if best == noVectors || len(src) < least || head%width != 0 {
		return swapVector(dst, src, width)
	}
	swapWords(dst[:head], src[:head], width)
	n = (len(src) - head) &^ (line - 1)
	if best == avx512 {
		throughAVX512(&dst[head], &src[head], n, &shuffles[width])
	} else {
		throughAVX2(&dst[head], &src[head], n, &shuffles[width])
	}
	return head + n
}

// The kernels shuffle n bytes from src to dst by the pattern in each lane of 16. Of AVX2's n is a
// positive multiple of 32, of the others' one of 64. Those that write past the caches have a dst
// that begins a line.

//go:noescape
func swapAVX2(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func swapAVX512(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func throughAVX2(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func throughAVX512(dst, src *byte, n int, shuffle *[16]byte)
