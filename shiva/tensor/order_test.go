package tensor

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

var widths = []int{1, 2, 4, 8, 16}

// swapNaively is the reference for the kernels.
func swapNaively(src []byte, width int) []byte {
	dst := make([]byte, len(src))
	for i := range src {
		dst[i-i%width+width-1-i%width] = src[i]
	}
	return dst
}

// kernels are all ways to swap that this machine has.
var kernels = map[string]func(dst, src []byte, width int){
	"chosen":   SwapCopy,
	"through":  SwapThrough,
	"portable": func(dst, src []byte, width int) { swapWords(dst[:len(src)], src, width) },
}

// TestSwapCopy: all widths, lengths around every block size of the kernels, and alignments of both
// sides; no byte beyond is written.
func TestSwapCopy(t *testing.T) {
	budgettest.OneGoroutine(t)
	const longest, margin = 2200, 128 // longer than where width 1 starts to use the kernel
	src := make([]byte, longest+margin)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range src {
		src[i] = byte(rnd.Uint32())
	}
	untouched := bytes.Repeat([]byte{0xAA}, longest+2*margin)
	dst, want := slices.Clone(untouched), slices.Clone(untouched)
	starts := []int{0, 1, 2, 3, 8, 15, 16, 31}
	swapped := map[[2]int][]byte{} // by start and width: shorter results are prefixes
	for _, width := range widths {
		for _, from := range starts {
			swapped[[2]int{width, from}] = swapNaively(src[from:from+longest/width*width], width)
		}
	}
	for name, swap := range kernels {
		for _, width := range widths {
			for n := 0; n <= longest; n += width {
				if n > 300 && n < 2040 && n%(16*5) != 0 {
					continue
				}
				for _, from := range starts {
					to := margin + (from*7+n)%33
					copy(dst, untouched)
					copy(want, untouched)
					copy(want[to:], swapped[[2]int{width, from}][:n])
					swap(dst[to:], src[from:from+n], width)
					if !bytes.Equal(dst, want) {
						t.Fatalf("%s: width %d, %d bytes from %d to %d:\n%x, want\n%x", name, width, n, from, to, dst,
							want)
					}
				}
			}
		}
	}
}

// TestSwapCopyInPlace: source and destination may be the same.
func TestSwapCopyInPlace(t *testing.T) {
	for name, swap := range kernels {
		for _, width := range widths {
			b := make([]byte, 16*21)
			for i := range b {
				b[i] = byte(i)
			}
			want := swapNaively(b, width)
			if swap(b, b, width); !bytes.Equal(b, want) {
				t.Errorf("%s, width %d: %x, want %x", name, width, b, want)
			}
		}
	}
}

// TestSwapCopyLong: lengths of a socket's pieces, which the kernels may handle differently from
// short ones.
func TestSwapCopyLong(t *testing.T) {
	src := make([]byte, 260<<10)
	rnd := rand.New(rand.NewPCG(3, 4))
	for i := range src {
		src[i] = byte(rnd.Uint32())
	}
	const longest = 256 << 10
	dst, want := make([]byte, len(src)+64), make([]byte, len(src)+64)
	for _, width := range widths {
		swapped := swapNaively(src[2:2+longest], width) // shorter results are prefixes
		for name, swap := range kernels {
			for _, n := range []int{8 << 10, 8<<10 + 16, 8<<10 + 240, 12_800, 64<<10 - 16, 64 << 10, longest} {
				for _, at := range []int{0, 16, 22} {
					clear(dst)
					clear(want)
					copy(want[at:], swapped[:n])
					if swap(dst[at:], src[2:2+n], width); !bytes.Equal(dst, want) {
						t.Fatalf("%s: width %d, %d bytes to %d differ", name, width, n, at)
					}
				}
			}
		}
	}
}

// FuzzSwapCopy: any length up to two blocks of the kernels, any alignment, any width; no byte
// before or beyond is written.
func FuzzSwapCopy(f *testing.F) {
	for i, n := range []int{0, 16, 31, 64, 1024, 8192, 20_000} {
		f.Add(uint16(n), uint8(i), uint8(3*i), uint8(i), byte(i))
	}
	memory := make([]byte, 1<<16+512)
	f.Fuzz(func(t *testing.T, length uint16, from, to, unit uint8, seed byte) {
		width := widths[int(unit)%len(widths)]
		src := make([]byte, int(from)+int(length)/width*width)
		for i := range src {
			src[i] = byte(i)*7 ^ byte(i>>8) + seed
		}
		src = src[from:]
		for name, swap := range kernels {
			dst := memory[:int(to)+len(src)+256]
			for i := range dst {
				dst[i] = seed
			}
			want := slices.Concat(bytes.Repeat([]byte{seed}, int(to)), swapNaively(src, width),
				bytes.Repeat([]byte{seed}, 256))
			if swap(dst[to:], src, width); !bytes.Equal(dst, want) {
				t.Fatalf("%s: width %d, %d bytes from %d to %d", name, width, len(src), from, to)
			}
		}
	})
}

func TestSwapCopyRefuses(t *testing.T) {
	for name, f := range map[string]func(){
		"short destination": func() { SwapCopy(make([]byte, 7), make([]byte, 8), 4) },
		"part of a unit":    func() { SwapCopy(make([]byte, 8), make([]byte, 7), 4) },
		"width 3":           func() { SwapCopy(make([]byte, 9), make([]byte, 9), 3) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func BenchmarkSwapCopy(b *testing.B) {
	const size = 64 << 10
	block := bytes.Repeat([]byte{1}, size+32) // written to, or it would map to one page of zeros
	dst := make([]byte, size)
	for _, aligned := range []string{"yes", "no"} {
		src := block[:size]
		if aligned == "no" {
			src = block[22:][:size] // as after a message's and a tensor's header
		}
		b.Run("width=1/kernel=runtime/aligned="+aligned, func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				copy(dst, src)
			}
		})
		for _, width := range widths {
			for name, swap := range kernels {
				b.Run(fmt.Sprintf("width=%d/kernel=%s/aligned=%s", width, name, aligned), func(b *testing.B) {
					b.SetBytes(size)
					for b.Loop() {
						swap(dst, src, width)
					}
				})
			}
		}
	}
}
