package gate

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/shivad/shivad/shiva/tensor"
)

// A compressed request that outgrows its memory gets and fills the next buffer only with a slot:
// while all slots are taken it waits, and between two pieces of its copy other requests get theirs.
func TestGrowthTakesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(old chan struct{}) { slots = old }(slots)
		slots = make(chan struct{}, 1)
		other := new(Slot)
		other.Take()

		m := &Memory{Pool: tensor.NewPool(64 << 20)}
		share, err := m.Unpacked(nil, new(int64))
		if err != nil {
			t.Fatal(err)
		}
		defer share.Close()
		src := bytes.Repeat([]byte{7}, 3*slotBytes)
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
			t.Fatal("it has memory without a slot")
		}
		const all = 4 // one for the memory, three for the copy
		for piece := range all {
			if filled {
				t.Errorf("it is filled after %d pieces, expected %d", piece, all)
			}
			next := new(Slot)
			go next.Take()
			synctest.Wait() // until it is queued behind one of those slots
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
