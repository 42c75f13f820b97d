//go:build !purego

package tensor

// vectorBytes is how many bytes the kernel takes at a time.
const vectorBytes = 16

// swapVector swaps as much of src as fills whole vectors and returns how many bytes that was. Every
// arm64 processor has NEON. The runtime copies well here, so a width of 1 is left to it.
func swapVector(dst, src []byte, width int) int {
	n := len(src) &^ (vectorBytes - 1)
	if n == 0 || width == 1 || raceEnabled { // the detector does not see assembly
		return 0
	}
	swapNEON(&dst[0], &src[0], n, &shuffles[width])
	return n
}

// swapThrough has no stores that bypass the caches here.
func swapThrough(dst, src []byte, width int) int { return swapVector(dst, src, width) }

// swapNEON shuffles n bytes, a positive multiple of 16, from src to dst with the given pattern in
// each vector.
//
//go:noescape
func swapNEON(dst, src *byte, n int, shuffle *[16]byte)
