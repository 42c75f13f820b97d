//go:build (amd64 || arm64) && !purego

package tensor

// shuffles holds, for each width, the source index of each byte of a 16-byte vector.
var shuffles = func() (m [17][16]byte) {
	for _, width := range []int{1, 2, 4, 8, 16} {
		for i := range 16 {
			m[width][i] = byte(i - i%width + width - 1 - i%width)
		}
	}
	return m
}()
