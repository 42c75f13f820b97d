package scheduler

import (
	"encoding/binary"
	"slices"
	"sort"
)

// priorities is the number of priorities: 0, served first, to 9.
const priorities = 10

// A bucket holds the waiting rows that may share a batch: those with the same dtype and trailing
// shape for each input. It has a queue for each priority.
type bucket struct {
	key      string // dtypes and trailing dimensions
	queues   [priorities]queue
	rows     int
	rowBytes int64 // of the latest rows; all are equal except for Bytes and mixed rows

	forgotten bool // it is not in buckets.byKey

	// Position among the other buckets: the key of its first row. Valid while listed.
	listed   bool
	priority int
	deadline int64
	seq      uint64
}

// top is the first non-empty queue, by priority.
func (b *bucket) top() (priority int, q *queue) {
	for i := range b.queues {
		if b.queues[i].items > 0 {
			return i, &b.queues[i]
		}
	}
	return priorities, nil
}

func (b *bucket) before(o *bucket) bool {
	switch {
	case b.priority != o.priority:
		return b.priority < o.priority
	case b.deadline != o.deadline:
		return b.deadline < o.deadline
	}
	return b.seq < o.seq
}

// buckets finds the bucket of a request, and lists those with waiting rows in order of their
// first rows: by priority, then deadline. At most queueShapes are listed at once, so a sorted
// slice is fast enough.
type buckets struct {
	one     bool // rows of all shapes share one bucket: Spec.MixedRows, or the model is not batched
	byKey   map[string]*bucket
	ordered []*bucket
	last    *bucket // bucket of the latest request: the next one usually has the same
	scratch []byte
}

// keepEmpty is how many empty buckets are remembered.
const keepEmpty = 64

// get is the bucket for r; nil if rows of queueShapes other shapes wait already.
func (bs *buckets) get(r *Request) *bucket {
	key := bs.scratch[:0]
	if !bs.one {
		for i := range r.Inputs {
			t := &r.Inputs[i]
			if key = append(key, byte(t.DType), byte(len(t.Shape))); len(t.Shape) == 0 {
				continue // an absent optional input
			}
			for _, d := range t.Shape[1:] {
				key = binary.AppendUvarint(key, uint64(d))
			}
		}
	}
	bs.scratch = key
	if b := bs.last; b != nil && b.key == string(key) {
		return b
	}
	b := bs.byKey[string(key)]
	if b == nil {
		if len(bs.ordered) >= queueShapes {
			return nil
		}
		b = &bucket{key: string(key)}
		if bs.byKey == nil {
			bs.byKey = make(map[string]*bucket)
		}
		bs.byKey[b.key] = b
	}
	bs.last = b
	return b
}

// reorder moves b to the position of its first row, which may have changed.
func (bs *buckets) reorder(b *bucket) {
	priority, q := b.top()
	if q == nil {
		bs.unlist(b)
		if len(bs.byKey) > keepEmpty {
			b.forgotten = true
			delete(bs.byKey, b.key)
			if bs.last == b {
				bs.last = nil
			}
		}
		return
	}
	// It was forgotten with its last row, which was removed to be inserted at another place, or to
	// make room for a newer row.
	if b.forgotten {
		b.forgotten = false
		bs.byKey[b.key] = b
	}
	head := q.head()
	if b.listed && b.priority == priority && b.deadline == head.deadline && b.seq == head.seq {
		return
	}
	if len(bs.ordered) == 1 && b.listed {
		b.priority, b.deadline, b.seq = priority, head.deadline, head.seq
		return
	}
	bs.unlist(b)
	b.priority, b.deadline, b.seq = priority, head.deadline, head.seq
	b.listed = true
	bs.ordered = slices.Insert(bs.ordered, bs.find(b), b)
}

func (bs *buckets) unlist(b *bucket) {
	if b.listed {
		i := bs.find(b)
		bs.ordered = slices.Delete(bs.ordered, i, i+1)
		b.listed = false
	}
}

func (bs *buckets) find(b *bucket) int {
	return sort.Search(len(bs.ordered), func(i int) bool { return !bs.ordered[i].before(b) })
}
