package gate

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/shivad/shivad/shiva/tensor"
)

// A compressed request that outgrows its memory gets and fills the next buffer only in turns: while
// all turns are taken it waits, and between two pieces of its copy other requests get theirs.
func TestGrowthTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(old chan struct{}) { turns = old }(turns)
		turns = make(chan struct{}, 1)
		other := new(Turn)
		other.Take()

		m := &Memory{Pool: tensor.NewPool(64 << 20)}
		share, err := m.Unpacked(nil, new(int64))
		if err != nil {
			t.Fatal(err)
		}
		defer share.Close()
		src := bytes.Repeat([]byte{7}, 3*turnBytes)
		small, err := m.Pool.Get(len(src))
		if err != nil {
			t.Fatal(err)
		}
		copy(small.Bytes(), src)
		before := m.Pool.InUse()
		var got *tensor.Buffer
		filled := false
		go func() {
			got, _ = share.Grow(small, len(src), 2*len(src))
			filled = true
		}()
		synctest.Wait()
		if m.Pool.InUse() != before {
			t.Fatal("it has memory without a turn")
		}
		const all = 4 // one for the memory, three for the copy
		for turn := range all {
			if filled {
				t.Errorf("it is filled after %d turns, expected %d", turn, all)
			}
			next := new(Turn)
			go next.Take()
			synctest.Wait() // until it is queued behind one of those turns
			other.Give()
			synctest.Wait()
			other = next
		}
		if !filled || !bytes.Equal(got.Bytes()[:len(src)], src) {
			t.Error("the copy is not what was copied")
		}
		got.Release()
	})
}
