//go:build !race && !invariants

package shiva_test

import (
	"net"
	"testing"
	"time"
	"unsafe"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/jsonscan"
	"github.com/shivad/shivad/shiva/shivatest"
	"github.com/shivad/shivad/shiva/tensor"
)

// TestAllocs holds the hot path to its budget.
func TestAllocs(t *testing.T) {
	budget := func(name string, most float64, f func()) {
		t.Helper()
		f() // one-time allocations
		if n := testing.AllocsPerRun(1000, f); n > most {
			t.Errorf("%s: %v allocations, the budget is %v", name, n, most)
		}
	}
	d := shiva.NewDecoder(shiva.DecoderConfig{Pool: tensor.NewPool(1 << 30)})
	decode := func(pieces ...[]byte) func() {
		return func() {
			for _, p := range pieces {
				for len(p) > 0 {
					n, m, err := d.Push(p)
					if err != nil {
						t.Fatal(err)
					}
					if p = p[n:]; m != nil {
						m.Release()
					}
				}
			}
		}
	}
	x := mustTensor(t, tensor.Shape{1, 16}, make([]float32, 16))
	y := mustTensor(t, tensor.Shape{1, 2, 3}, make([]uint8, 6))
	m := &shiva.Message{Namespace: "digits/1", Metadata: []byte(`{"id":"17","__tensors__":["a","b"]}`),
		Tensors: []tensor.Tensor{x, y}}
	small := mustEncode(t, m)
	budget("decode a small message", 0, decode(small))
	budget("decode it cut everywhere", 0,
		decode(small[:7], small[7:13], small[13:30], small[30:100], small[100:len(small)-3], small[len(small)-3:]))
	other := mustEncode(t, &shiva.Message{Namespace: "other"})
	budget("decode messages of two namespaces", 0, decode(small, other))
	big := mustTensor(t, tensor.Shape{1 << 18}, make([]float32, 1<<18))
	budget("decode 1 MiB", 0, decode(mustEncode(t, &shiva.Message{Tensors: []tensor.Tensor{big}})))

	dst := make([]byte, 0, 1<<10)
	budget("append", 0, func() {
		if _, err := shiva.AppendMessage(dst, m); err != nil {
			t.Fatal(err)
		}
	})
	vecs := make([]shiva.Vec, 0, 8)
	budget("append vectored", 0, func() {
		if _, _, err := shiva.AppendVectored(dst, vecs, m); err != nil {
			t.Fatal(err)
		}
	})
	budget("check metadata", 0, func() {
		if err := shiva.ValidObject(m.Metadata); err != nil {
			t.Fatal(err)
		}
	})
	id := 0
	budget("look at metadata", 0, func() {
		for key, value := range jsonscan.Members(m.Metadata) {
			if string(key) == "id" {
				id += len(value)
			}
		}
	})
}

// TestStreamAllocs: a frame, from Push to its answer, allocates nothing.
func TestStreamAllocs(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := shivatest.Serve(l, shivatest.Echo)
	defer server.Close()
	client, err := shiva.Dial(t.Context(), server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := client.Stream(t.Context(), shiva.StreamConfig{Model: "m", Name: "cam", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx := t.Context()
	f := shiva.Frame{Tensors: []tensor.Tensor{mustTensor(t, tensor.Shape{10_000}, make([]uint8, 10_000))}}
	frame := func() {
		if _, err := s.Push(ctx, f); err != nil {
			t.Fatal(err)
		}
		for a, err := range s.Answers(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			a.Release()
			break
		}
	}
	frame()
	if n := testing.AllocsPerRun(1000, frame); n > 0 {
		t.Errorf("%v allocations, the budget is 0", n)
	}
}

// TestDecoderSize: thousands of idle connections may each have one.
func TestDecoderSize(t *testing.T) {
	if size := unsafe.Sizeof(shiva.Decoder{}); size > 512 {
		t.Errorf("a Decoder has %d bytes, the budget is 512", size)
	}
}
