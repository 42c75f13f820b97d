package picture

import (
	"math"
	"strings"
	"testing"
)

// TestClip: what is left of a region in the picture, or why nothing can be cut.
func TestClip(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	diamond := Region{{0.5, 0}, {1, 0.5}, {0.5, 1}, {0, 0.5}}
	for _, tc := range []struct {
		what string
		give Region
		want Region
		err  string
	}{
		{"whole", Box(0, 0, 1, 1), Box(0, 0, 1, 1), ""},
		{"beyond all sides", Box(-1, -2, 3, 4), Box(0, 0, 1, 1), ""},
		{"beyond a corner", Box(0.5, 0.75, 1.5, 1.25), Box(0.5, 0.75, 1, 1), ""},
		{"a diamond", diamond, diamond, ""},
		{"negative zero", Box(float32(math.Copysign(0, -1)), 0, 1, 1), Box(0, 0, 1, 1), ""},
		{"beside", Box(1, 0, 2, 1), Region{}, "[1, 0, 2, 1] is outside the picture"},
		{"a corner at a corner", Box(-1, -1, 0, 0), Region{}, "is outside the picture"},
		{"no width", Box(0.5, 0, 0.5, 1), Region{}, "[0.5, 0, 0.5, 1] is empty"},
		{"mirrored", Box(1, 0, 0, 1), Region{}, "is empty or turned inside out"},
		{"mirrored both ways", Box(1, 1, 0, 0), Region{}, "[1, 1, 0, 0] is empty or turned inside out"},
		{"upside down", Region{{1, 1}, {0, 1}, {0, 0}, {1, 0}}, Region{{1, 1}, {0, 1}, {0, 0}, {1, 0}}, ""},
		{"anticlockwise", Region{{0, 0}, {0, 1}, {1, 1}, {1, 0}}, Region{}, "[[0, 0], [0, 1], [1, 1], [1, 0]] is empty or turned inside out"},
		{"crossing", Region{{0, 0}, {1, 1}, {1, 0}, {0, 1}}, Region{}, "turned inside out"},
		{"not convex", Region{{0, 0}, {1, 0}, {0.25, 0.25}, {0, 1}}, Region{}, "turned inside out"},
		{"three in a line", Region{{0, 0}, {0.5, 0}, {1, 0}, {0, 1}}, Region{}, "is empty or turned"},
		{"no number", Box(0, nan, 1, 1), Region{}, "not a number"},
		{"infinite", Box(0, 0, inf, 1), Region{}, "or infinite"},
	} {
		got, err := tc.give.Clip()
		if tc.err == "" && (err != nil || got != tc.want) ||
			tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%s: %v, %v; expected %v, %q", tc.what, got, err, tc.want, tc.err)
		}
	}
}

// TestSize: sides are rounded up to whole pixels, but not by what FP32 adds.
func TestSize(t *testing.T) {
	third := Box(1./3, 0, 2./3, 1)
	tilted := Region{{0.5, 0}, {1, 0.5}, {0.5, 1}, {0, 0.5}}
	for _, tc := range []struct {
		region        Region
		width, height int
		w, h          int
	}{
		{Box(0, 0, 1, 1), 640, 480, 640, 480},
		{third, 300, 10, 100, 10},
		{third, 100, 10, 34, 10},
		{Box(0.1, 0.1, 0.2, 0.2), 65535, 65535, 6554, 6554},
		{Box(0.5, 0.5, 0.5001, 0.5001), 100, 100, 1, 1},
		{tilted, 100, 100, 71, 71},
	} {
		if w, h := tc.region.Size(tc.width, tc.height); w != tc.w || h != tc.h {
			t.Errorf("%v of %d x %d has %d x %d pixels, expected %d x %d", tc.region, tc.width, tc.height, w, h, tc.w,
				tc.h)
		}
	}
}
