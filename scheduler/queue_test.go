package scheduler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shivad/shivad/shiva/budgettest"
)

// TestQueueAgainstSlice applies the same operations to a queue and to a sorted slice.
func TestQueueAgainstSlice(t *testing.T) {
	budgettest.OneGoroutine(t)
	for seed := range uint64(budgettest.Rounds(20)) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var q queue
		var ref []*item
		order := func(a, b *item) int {
			if a.before(b.place) {
				return -1
			}
			return 1
		}
		rowsFrom := func(i int) (n int) {
			for _, it := range ref[i:] {
				n += it.rows()
			}
			return n
		}
		for step := range 4000 {
			switch op := rng.IntN(10); {
			case op < 5+int(seed%3) || len(ref) == 0:
				it := &item{req: &Request{Rows: 9}, hi: 1 + rng.IntN(3)*rng.IntN(2),
					place: place{seq: uint64(step), deadline: int64(rng.IntN(500))}}
				if seed%2 == 0 {
					it.deadline = int64(step / 3) // all with one SLO
				}
				q.insert(it)
				i, _ := slices.BinarySearchFunc(ref, it, order)
				ref = slices.Insert(ref, i, it)
			case op < 8:
				i := rng.IntN(len(ref))
				q.remove(ref[i])
				ref = slices.Delete(ref, i, i+1)
			default:
				it := ref[rng.IntN(len(ref))]
				if it.rows() > 1 {
					q.shrink(it, 1)
				}
			}
			if _, err := q.check(func(*item) error { return nil }); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if len(ref) != q.items || rowsFrom(0) != q.rows {
				t.Fatalf("seed %d, step %d: %d items of %d rows, want %d of %d", seed, step, q.items, q.rows, len(ref),
					rowsFrom(0))
			}
			if most := 4*q.items/blockSize*2 + 2; len(q.blocks) > most {
				t.Fatalf("seed %d, step %d: %d blocks for %d items, want at most %d", seed, step, len(q.blocks),
					q.items, most)
			}
			d := int64(rng.IntN(1500))
			i, _ := slices.BinarySearchFunc(ref, d, func(it *item, d int64) int { return int(it.deadline - d) })
			for i > 0 && ref[i-1].deadline >= d {
				i--
			}
			c := q.seek(q.start(), d)
			switch {
			case q.end(c) != (i == len(ref)):
				t.Fatalf("seed %d, step %d: seek %d: end %v, want place %d of %d", seed, step, d, q.end(c), i, len(ref))
			case !q.end(c) && q.item(c) != ref[i]:
				t.Fatalf("seed %d, step %d: seek %d finds deadline %d, want %d", seed, step, d, q.item(c).deadline,
					ref[i].deadline)
			case q.rowsFrom(c) != rowsFrom(i):
				t.Fatalf("seed %d, step %d: %d rows from %d, want %d", seed, step, q.rowsFrom(c), d, rowsFrom(i))
			case q.rowsBefore(d-1) != q.rows-rowsFrom(i):
				t.Fatalf("seed %d, step %d: %d rows before %d, want %d", seed, step, q.rowsBefore(d-1), d,
					q.rows-rowsFrom(i))
			}
		}
		if len(ref) > 0 && (q.head() != ref[0] || q.tail() != ref[len(ref)-1]) {
			t.Fatalf("seed %d: head or tail is wrong", seed)
		}
	}
}
