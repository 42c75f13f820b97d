package state

import (
	"cmp"
	"slices"
)

// recent remembers the items with the highest numbers: deleted keys by revision, ids by time. It
// holds up to max and an eighth: only then is the sort that finds the surplus worth its cost.
type recent[K comparable] struct {
	max   int
	at    map[K]uint64
	floor uint64 // the highest number that was forgotten
}

func newRecent[K comparable](max int) recent[K] { return recent[K]{max: max, at: map[K]uint64{}} }

func (r *recent[K]) add(k K, n uint64) {
	r.at[k] = max(n, r.at[k])
	if len(r.at) > r.max+r.max/8 {
		r.trim()
	}
}

func (r *recent[K]) trim() {
	type item struct {
		k K
		n uint64
	}
	all := make([]item, 0, len(r.at))
	for k, n := range r.at {
		all = append(all, item{k, n})
	}
	slices.SortFunc(all, func(a, b item) int { return cmp.Compare(b.n, a.n) })
	for _, old := range all[r.max:] {
		delete(r.at, old.k)
		r.floor = max(r.floor, old.n)
	}
}
