package shiva_test

import (
	"fmt"
	"testing"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

var benchSizes = []struct {
	name  string
	bytes int
}{{"64B", 64}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}}

var benchDTypes = []tensor.DType{tensor.Uint8, tensor.Float16, tensor.Float32, tensor.Float64}

func benchMessage(d tensor.DType, size int) *shiva.Message {
	x := tensor.Tensor{DType: d, Shape: tensor.Shape{1, size / d.Size()}, Data: make([]byte, size)}
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

// BenchmarkCopy is the bar for the others: the same bytes, moved and not looked at.
func BenchmarkCopy(b *testing.B) {
	for _, size := range benchSizes {
		b.Run("size="+size.name, func(b *testing.B) {
			src, dst := make([]byte, size.bytes), make([]byte, size.bytes)
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

// BenchmarkDecodePieces is the same in pieces as a socket gives them.
func BenchmarkDecodePieces(b *testing.B) {
	wire, err := shiva.AppendMessage(nil, benchMessage(tensor.Float32, 1<<20))
	if err != nil {
		b.Fatal(err)
	}
	for _, piece := range []int{4 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("dtype=float32/size=1MiB/piece=%dKiB", piece>>10), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(1 << 20)
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
		var vecs [][]byte
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
