package tensor

// hasAVX2 reports whether the processor and the operating system know 256-bit integer vectors.
// The race detector does not see what assembly touches, and the bytes of tensors are where it
// is needed most: with it, the portable kernel works.
var hasAVX2 = !raceEnabled && detectAVX2()

// detectAVX2 asks the processor, as its manual says: the instructions exist (leaf 7, EBX bit
// 5), and the operating system saves the wide registers (leaf 1, ECX bit 27; then XCR0 bits 1
// and 2).
func detectAVX2() bool {
	maxLeaf, _, _, _ := cpuid(0, 0)
	if maxLeaf < 7 {
		return false
	}
	const osxsave, avx, avx2, xmmYmm = 1 << 27, 1 << 28, 1 << 5, 1<<1 | 1<<2
	_, _, c, _ := cpuid(1, 0)
	if c&(osxsave|avx) != osxsave|avx || xgetbv()&xmmYmm != xmmYmm {
		return false
	}
	_, b, _, _ := cpuid(7, 0)
	return b&avx2 != 0
}

// swapVector swaps as much of src as fills whole vectors and tells how many bytes that was.
func swapVector(dst, src []byte, width int) int {
	n := len(src) &^ (vectorBytes - 1)
	if n == 0 || !hasAVX2 {
		return 0
	}
	swapAVX2(&dst[0], &src[0], n, &shuffles[width])
	return n
}

// vectorBytes is what the kernel takes at a time.
const vectorBytes = 32

// shuffles holds, for each width, where each byte of a 16-byte lane comes from.
var shuffles = func() (m [17][16]byte) {
	for _, width := range []int{1, 2, 4, 8, 16} {
		for i := range 16 {
			m[width][i] = byte(i - i%width + width - 1 - i%width)
		}
	}
	return m
}()

// swapAVX2 shuffles n bytes, a positive multiple of 32, from src to dst by the pattern in each
// lane.
//
//go:noescape
func swapAVX2(dst, src *byte, n int, shuffle *[16]byte)

//go:noescape
func cpuid(leaf, sub uint32) (a, b, c, d uint32)

//go:noescape
func xgetbv() (lower uint32)
