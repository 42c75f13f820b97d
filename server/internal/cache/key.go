package cache

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/shivad/shivad/scheduler"
)

// A key is the same for equal requests.
type key = xxh3.Uint128

// key hashes what the answer to r depends on, and the salt. Long texts are hashed in place and
// represented by their hashes, which keeps the key's input short. Lengths come first, so that
// different lists of inputs never produce the same hash input.
func (v *Version) key(r *scheduler.Request, salt string) key {
	var space [256]byte // enough for four inputs of rank 4
	seed := v.cache.seed
	b := binary.NativeEndian.AppendUint64(space[:0], v.id)
	b = appendHash(b, r.Parameters, seed)
	b = appendHash(b, []byte(salt), seed)
	if r.Rare != nil && r.Rare.Holes { // failed rows are part of its answer
		b = append(b, 1)
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		b = append(b, byte(t.DType), byte(len(t.Shape)))
		for _, d := range t.Shape {
			b = binary.NativeEndian.AppendUint64(b, uint64(d))
		}
		b = appendHash(b, t.Data, seed)
	}
	return xxh3.Hash128Seed(b, seed)
}

func appendHash(b, data []byte, seed uint64) []byte {
	h := xxh3.Hash128Seed(data, seed)
	b = binary.NativeEndian.AppendUint64(b, h.Hi)
	return binary.NativeEndian.AppendUint64(b, h.Lo)
}
