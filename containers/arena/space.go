package arena

import (
	"cmp"
	"slices"
)

// A space divides the addresses of a segment: first fit from the lowest address, so that what was
// ever used stays short, and with it the memory that the segment takes. Neighbours that are free
// become one. There are as many free ranges as live buffers at most, hundreds rather than
// thousands, each of 40 KiB or more: a linear search costs less than the first page of one.
type space struct {
	free []extent // in order of their offsets
	high int64    // end of what was ever used
	used int64    // bytes in use
}

// An extent is a range of bytes.
type extent struct{ lo, hi int64 }

func newSpace(lo, hi int64) space { return space{free: []extent{{lo, hi}}, high: lo} }

// take returns the offset of n bytes that reach at most up to the given limit, in the first place.
// If they are to grow to room bytes, it is the end of the first place that has as many and was used
// before: what is below is left for the next ones that grow.
func (s *space) take(n, room, limit int64) (offset int64, ok bool) {
	place := -1
	for i, f := range s.free {
		if f.hi-f.lo < n {
			continue
		}
		if f.lo+n > limit {
			break // all others are higher
		}
		if place < 0 {
			place, offset = i, f.lo
		}
		if room <= n {
			break
		}
		if end := min(f.hi, s.high); end-f.lo >= room {
			place, offset = i, end-room
			break
		}
	}
	if place < 0 {
		return 0, false
	}
	s.cut(place, offset, n)
	return offset, true
}

// extend takes more bytes, up to the given limit, behind the n at offset, if they are free.
func (s *space) extend(offset, n, more, limit int64) bool {
	at := offset + n
	i, ok := slices.BinarySearchFunc(s.free, at, func(f extent, at int64) int { return cmp.Compare(f.lo, at) })
	if !ok || s.free[i].hi-at < more || at+more > limit {
		return false
	}
	s.cut(i, at, more)
	return true
}

// cut takes n bytes at an offset out of a free range.
func (s *space) cut(i int, offset, n int64) {
	s.used += n
	end := offset + n
	s.high = max(s.high, end)
	f := &s.free[i]
	switch below, above := f.lo < offset, end < f.hi; {
	case below && above:
		behind := extent{end, f.hi}
		f.hi = offset
		s.free = slices.Insert(s.free, i+1, behind)
	case below:
		f.hi = offset
	case above:
		f.lo = end
	default:
		s.free = slices.Delete(s.free, i, i+1)
	}
}

// give takes n bytes back that take returned.
func (s *space) give(offset, n int64) {
	s.used -= n
	i, _ := slices.BinarySearchFunc(s.free, offset, func(f extent, at int64) int {
		if f.lo < at {
			return -1
		}
		return 1
	})
	before, after := i > 0 && s.free[i-1].hi == offset, i < len(s.free) && s.free[i].lo == offset+n
	switch {
	case before && after:
		s.free[i-1].hi = s.free[i].hi
		s.free = slices.Delete(s.free, i, i+1)
	case before:
		s.free[i-1].hi += n
	case after:
		s.free[i].lo = offset
	default:
		s.free = slices.Insert(s.free, i, extent{offset, offset + n})
	}
}
