package parameter

import (
	"iter"
	"strings"
)

// A Place is the location of a tensor that is not in its message: part of a region of shared
// memory. The zero Place is no location.
type Place struct {
	Region string `json:"region"`
	Offset int64  `json:"offset"`    // in the region
	Size   int64  `json:"byte_size"` // in the region, from there
	sized  bool
}

// placePrefix begins the parameters of a tensor that give its place.
const placePrefix = "shared_memory_"

// PlaceKey reports whether a tensor's parameter is about its place, and returns the key.
func PlaceKey(name string) (key string, ok bool) { return strings.CutPrefix(name, placePrefix) }

// Read puts the value of a key into p. On a wrong value it returns what was expected; otherwise "".
func (p *Place) Read(key string, v Value) (expected string) {
	switch key {
	case "region":
		if s, ok := v.text(); ok && s != "" {
			p.Region = s
			return ""
		}
		return "the name of a region"
	case "offset", "byte_size":
		n, ok := v.Whole()
		if !ok || n > MaxOffset {
			return "a whole number of bytes, 0 or more"
		}
		if key == "offset" {
			p.Offset = int64(n)
		} else {
			p.Size, p.sized = int64(n), true
		}
		return ""
	}
	return "shared_memory_region, shared_memory_offset or shared_memory_byte_size"
}

// MaxOffset is the largest offset and size of a place: the sum of two does not overflow.
const MaxOffset = 1 << 62

// Lacks returns what is missing from a partly given place; "" = nothing.
func (p *Place) Lacks() string {
	switch {
	case p.Region == "" && (p.Offset != 0 || p.sized):
		return placePrefix + "region"
	case p.Region != "" && !p.sized:
		return placePrefix + "byte_size"
	}
	return ""
}

// Parameters returns the parameters of an output whose data is at p.
func (p Place) Parameters() iter.Seq2[string, any] {
	return func(yield func(string, any) bool) {
		_ = yield(placePrefix+"region", p.Region) && yield(placePrefix+"offset", p.Offset) && yield(placePrefix+"byte_size", p.Size)
	}
}
