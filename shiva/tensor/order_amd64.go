//go:build !purego

package tensor

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// vectors is the best vector instruction set that the processor and the operating system support.
type vectors uint8

const (
	noVectors vectors = iota
	avx2
	avx512 // with bytes and words (BW)
)

// The race detector does not see memory accesses of assembly, and tensor bytes need it most: under
// it, use the portable kernel.
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

// line is the size of a cache line, and of an AVX-512 vector.
const line = 64

// swapVector swaps as much of src as fills whole vectors and returns how many bytes that was.
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

// swapThrough is swapVector with stores that bypass the caches, for the whole cache lines of dst.
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

// The kernels shuffle n bytes from src to dst with the given pattern in each lane of 16. For
// swapAVX2, n must be a positive multiple of 32, for the others of 64. The kernels that bypass the
// caches need a dst aligned to a cache line.

//go:noescape
func swapAVX2(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func swapAVX512(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func throughAVX2(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func throughAVX512(dst, src *byte, n int, shuffle *[16]byte)
