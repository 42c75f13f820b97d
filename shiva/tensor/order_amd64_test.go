//go:build !purego

package tensor

func init() {
	for v, name := range map[vectors]string{avx2: "AVX2", avx512: "AVX-512"} {
		if v > best {
			continue
		}
		with := func(f func(dst, src []byte, width int)) func(dst, src []byte, width int) {
			return func(dst, src []byte, width int) {
				defer func(had vectors) { best = had }(best)
				best = v
				f(dst, src, width)
			}
		}
		kernels[name] = with(SwapCopy)
		kernels[name+" through"] = with(SwapThrough)
	}
}
