package picture

import (
	"errors"
	"fmt"
	"math"
)

// A Region is a part of a picture: its corners, x and y in parts (0 to 1) of the upright picture,
// clockwise from the one that becomes the top left of what is cut out.
type Region [4][2]float32

// Box returns the region of a box. One whose sides are both given the wrong way around is turned
// inside out, too, and not upside down.
func Box(xMin, yMin, xMax, yMax float32) Region {
	if xMax < xMin && yMax < yMin {
		return Region{{xMin, yMin}, {xMin, yMax}, {xMax, yMax}, {xMax, yMin}}
	}
	return Region{{xMin, yMin}, {xMax, yMin}, {xMax, yMax}, {xMin, yMax}}
}

var errNoCorner = errors.New("a coordinate is not a number, or infinite")

// Clip moves the corners that are outside the picture to its edge. It returns an error for a region
// that nothing can be cut from: it has coordinates that are not numbers, nothing of it is in the
// picture, or its corners do not go clockwise around a convex area.
func (r Region) Clip() (Region, error) {
	given := r
	for i := range r {
		for k, v := range r[i] {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return r, errNoCorner
			}
			r[i][k] = min(max(v, 0), 1)
		}
	}
	if r.convex() {
		return r, nil
	}
	if given.convex() {
		return r, fmt.Errorf("%s is outside the picture, where x and y are 0 to 1, or touches no more than its edge", given)
	}
	return r, fmt.Errorf("%s is empty or turned inside out: expected x_min < x_max and y_min < y_max, or corners clockwise around a convex area", given)
}

// convex reports whether the corners go clockwise around a convex area that is not empty.
func (r *Region) convex() bool {
	for i := range r {
		a, b, c := r[i], r[(i+1)%4], r[(i+2)%4]
		cross := (float64(b[0])-float64(a[0]))*(float64(c[1])-float64(b[1])) - (float64(b[1])-float64(a[1]))*(float64(
			c[0])-float64(b[0]))
		if !(cross > 0) {
			return false
		}
	}
	return true
}

// Size returns how many pixels on each side are cut out of a picture of width x height: the longer
// one of opposite sides, rounded up.
func (r *Region) Size(width, height int) (w, h int) {
	side := func(a, b int) float64 {
		return math.Hypot((float64(r[a][0])-float64(r[b][0]))*float64(width),
			(float64(r[a][1])-float64(r[b][1]))*float64(height))
	}
	const rounding = 0.005 // of a part of the longest side to FP32, in pixels, and more
	whole := func(a, b float64) int { return max(1, int(math.Ceil(max(a, b)-rounding))) }
	return whole(side(0, 1), side(3, 2)), whole(side(0, 3), side(1, 2))
}

// String returns the region as clients write it: a box as [x_min, y_min, x_max, y_max], any other
// one as a list of corners.
func (r Region) String() string {
	if r == Box(r[0][0], r[0][1], r[2][0], r[2][1]) {
		return fmt.Sprintf("[%g, %g, %g, %g]", r[0][0], r[0][1], r[2][0], r[2][1])
	}
	return fmt.Sprintf("[[%g, %g], [%g, %g], [%g, %g], [%g, %g]]", r[0][0], r[0][1], r[1][0], r[1][1], r[2][0], r[2][1],
		r[3][0], r[3][1])
}
