package shiva

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRing compares the ring with two slices.
func TestRing(t *testing.T) {
	const size = 5
	rnd := rand.New(rand.NewPCG(1, 2))
	r := newRing(size)
	var sent, unsent []*call
	for step := range 20_000 {
		switch k := rnd.IntN(4); {
		case k == 0 && len(sent)+len(unsent) < size:
			c := new(call)
			r.push(c)
			unsent = append(unsent, c)
		case k == 1:
			var want *call
			if len(unsent) > 0 {
				want = unsent[0]
				sent, unsent = append(sent, want), unsent[1:]
			}
			if got := r.nextUnsent(); got != want {
				t.Fatalf("step %d: another call is sent", step)
			}
		case k == 2 && len(sent) > 0:
			if got := r.pop(); got != sent[0] {
				t.Fatalf("step %d: another call is answered", step)
			}
			sent = sent[1:]
		case k == 3 && len(unsent) > 0:
			i := rnd.IntN(len(unsent))
			if !r.removeUnsent(unsent[i]) {
				t.Fatalf("step %d: an unsent call is not found", step)
			}
			unsent = slices.Delete(slices.Clone(unsent), i, i+1)
		}
		for _, c := range sent {
			if r.removeUnsent(c) {
				t.Fatalf("step %d: a sent call is removed", step)
			}
		}
		if r.n != len(sent)+len(unsent) || r.sent != len(sent) {
			t.Fatalf("step %d: %d calls, %d sent; want %d, %d", step, r.n, r.sent, len(sent)+len(unsent), len(sent))
		}
	}
	for r.sent > 0 {
		r.pop()
	}
	for _, c := range unsent {
		r.removeUnsent(c)
	}
	for _, c := range r.calls {
		if c != nil {
			t.Error("an empty ring holds on to a call")
		}
	}
}
