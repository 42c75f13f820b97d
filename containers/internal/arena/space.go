package arena

import "slices"

// A space divides the addresses of a segment: first fit from the lowest address, so that the range
// that was ever used stays short, and with it the memory that the segment takes. Free neighbours
// are merged. There are at most as many free ranges as live buffers, hundreds rather than
// thousands, each of 40 KiB or more: a linear search costs less than the first page of one.
type space struct {
	free []extent // in order of their offsets
	high int64    // end of the range that was ever used
	used int64    // bytes in use
}

// An extent is a range of bytes.
type extent struct{ lo, hi int64 }

func newSpace(lo, hi int64) space { return space{free: []extent{{lo, hi}}, high: lo} }

// take returns the offset of n free bytes that end at or below the given limit.
func (s *space) take(n, limit int64) (offset int64, ok bool) {
	for i := range s.free {
		f := &s.free[i]
		if f.hi-f.lo < n {
			continue
		}
		if f.lo+n > limit {
			return 0, false // all other ranges are higher
		}
		offset = f.lo
		if f.lo += n; f.lo == f.hi {
			s.free = slices.Delete(s.free, i, i+1)
		}
		s.used += n
		s.high = max(s.high, offset+n)
		return offset, true
	}
	return 0, false
}

// give frees n bytes that take returned.
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
