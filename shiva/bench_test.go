package shiva_test

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

var benchSizes = []struct {
	name  string
	bytes int
}{{"64B", 64}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}}

var benchDTypes = []tensor.DType{tensor.Uint8, tensor.Float16, tensor.Float32, tensor.Float64}

// written returns n bytes that were written to: memory that never was maps to a single page of
// zeros, which the processor's caches hold, so reading it is twice too fast.
func written(n int) []byte { return bytes.Repeat([]byte{1}, n) }

func benchMessage(d tensor.DType, size int) *shiva.Message {
	x := tensor.Tensor{DType: d, Shape: tensor.Shape{1, size / d.Size()}, Data: written(size)}
	return &shiva.Message{Namespace: "digits", Metadata: []byte(`{"id":"17"}`), Tensors: []tensor.Tensor{x}}
}

func eachBench(b *testing.B, f func(b *testing.B, m *shiva.Message)) {
	for _, d := range benchDTypes {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("dtype=%s/size=%s", d, size.name), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size.bytes))
				f(b, benchMessage(d, size.bytes))
			})
		}
	}
}

// BenchmarkCopy is the baseline for the other benchmarks: it only copies the same bytes.
func BenchmarkCopy(b *testing.B) {
	for _, size := range benchSizes {
		b.Run("size="+size.name, func(b *testing.B) {
			src, dst := written(size.bytes), make([]byte, size.bytes)
			b.ReportAllocs()
			b.SetBytes(int64(size.bytes))
			for b.Loop() {
				copy(dst, src)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	eachBench(b, func(b *testing.B, m *shiva.Message) {
		wire, err := shiva.AppendMessage(nil, m)
		if err != nil {
			b.Fatal(err)
		}
		d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(0)})
		for b.Loop() {
			_, got, err := d.Push(wire)
			if err != nil || got == nil {
				b.Fatal(got, err)
			}
			got.Release()
		}
	})
}

// BenchmarkDecodePieces decodes pieces of the sizes that a socket delivers.
func BenchmarkDecodePieces(b *testing.B) {
	for _, size := range []int{602_112, 1 << 20, 8 << 20} {
		wire, err := shiva.AppendMessage(nil, benchMessage(tensor.Float32, size))
		if err != nil {
			b.Fatal(err)
		}
		for _, piece := range []int{4 << 10, 64 << 10} {
			b.Run(fmt.Sprintf("dtype=float32/size=%d/piece=%dKiB", size, piece>>10), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(0)})
				for b.Loop() {
					for p := wire; len(p) > 0; {
						n, got, err := d.Push(p[:min(piece, len(p))])
						if err != nil {
							b.Fatal(err)
						}
						if p = p[n:]; got != nil {
							got.Release()
						}
					}
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	eachBench(b, func(b *testing.B, m *shiva.Message) {
		var dst []byte
		for b.Loop() {
			var err error
			if dst, err = shiva.AppendMessage(dst[:0], m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncodeVectored(b *testing.B) {
	eachBench(b, func(b *testing.B, m *shiva.Message) {
		var scratch []byte
		var vecs []shiva.Vec
		for b.Loop() {
			var err error
			if scratch, vecs, err = shiva.AppendVectored(scratch[:0], vecs[:0], m); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkValidObject(b *testing.B) {
	text := []byte(`{"id":"17","__tensors__":["image","mask"],"timeout_ms":50.5,"parameters":{"threshold":0.5,"labels":["a","b","c"]}}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if err := shiva.ValidObject(text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkClient measures a round trip to an echo server on a real socket, with one caller and
// with many.
func BenchmarkClient(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := shivatest.Serve(l, shivatest.Echo)
	defer s.Close()
	c, err := shiva.Dial(b.Context(), s.Addr())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for _, callers := range []int{1, 32} {
		for _, size := range benchSizes {
			b.Run(fmt.Sprintf("callers=%d/size=%s", callers, size.name), func(b *testing.B) {
				m := benchMessage(tensor.Uint8, size.bytes)
				b.ReportAllocs()
				b.SetBytes(int64(size.bytes))
				b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
				do := func() {
					answer, err := c.Do(b.Context(), m)
					if err != nil {
						b.Error(err)
						return
					}
					answer.Release()
				}
				if callers == 1 {
					for b.Loop() {
						do()
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						do()
					}
				})
			})
		}
	}
}
