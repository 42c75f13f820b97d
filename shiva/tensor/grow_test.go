package tensor_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// However the body is split, its memory is bounded by the bytes that have arrived, and the copying
// by the size of the body.
func TestStage(t *testing.T) {
	for _, factor := range []int{2, tensor.StageFactor} {
		for range 2000 {
			whole := 1 + rand.IntN(1<<(1+rand.IntN(27)))
			room, copied := 0, 0
			for have := 0; have < whole; {
				piece := min(1+rand.IntN(1<<rand.IntN(20)), whole-have)
				if least := have + piece; least > room {
					copied += have
					room = tensor.Stage(least, whole, factor)
					if room < least || room > whole || room < whole && room%16 != 0 {
						t.Fatalf("%d of %d bytes by %d: %d", least, whole, factor, room)
					}
					if most := factor * max(least, 2<<10); room > most+16 {
						t.Fatalf("%d of %d bytes by %d have %d, more than %d", least, whole, factor, room, most)
					}
				}
				have += piece
			}
			if most := whole/(factor-1) + 1<<10; copied > most {
				t.Fatalf("%d of %d bytes were copied by %d, more than %d", copied, whole, factor, most)
			}
		}
	}
	for least, want := range map[int]int{1: 64, 64: 64, 65: 128, 4096: 4096, 4097: 8192} {
		if got := tensor.Stage(least, 0, 2); got != want {
			t.Errorf("%d bytes of a body of unknown size have %d, expected %d", least, got, want)
		}
	}
}

func TestGrow(t *testing.T) {
	pool := tensor.NewPool(4 << 10)
	b, err := pool.Grow(nil, 0, 1<<10)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{7}, 1000)
	copy(b.Bytes(), want)
	if b, err = pool.Grow(b, len(want), 2<<10); err != nil {
		t.Fatal(err)
	}
	if pool.InUse() != 2<<10 || !bytes.Equal(b.Bytes()[:len(want)], want) {
		t.Errorf("%d bytes are out, and it begins with %x", pool.InUse(), b.Bytes()[:8])
	}
	// While both buffers are in use, both count.
	if _, err := pool.Grow(b, len(want), 3<<10); !errors.Is(err, tensor.ErrBudget) {
		t.Errorf("beyond the budget: %v", err)
	}
	if pool.InUse() != 2<<10 || !bytes.Equal(b.Bytes()[:len(want)], want) {
		t.Errorf("after a refusal %d bytes are out, and it begins with %x", pool.InUse(), b.Bytes()[:8])
	}
	b.Release()
}
