package apps

import (
	"testing"

	"github.com/shivad/shivad/shiva/tensor"
)

// TestRowsOfAny: what counts rows when nothing is declared.
func TestRowsOfAny(t *testing.T) {
	in := func(name string, shape ...int) tensor.Tensor { return tensor.Tensor{Name: name, Shape: shape} }
	for what, tc := range map[string]struct {
		give []tensor.Tensor
		rows int
		one  bool
	}{
		"none":            {nil, 1, true},
		"rows":            {[]tensor.Tensor{in("x", 3, 2), in("y", 3, 1)}, 3, false},
		"others":          {[]tensor.Tensor{in("x", 3, 2), in("y", 2, 1)}, 1, true},
		"one":             {[]tensor.Tensor{in("x", 3)}, 1, true},
		"a file":          {[]tensor.Tensor{in("image", 1000)}, 1, true},
		"regions of it":   {[]tensor.Tensor{in("image", 1000), in("image_regions", 5, 4)}, 5, false},
		"corners":         {[]tensor.Tensor{in("image_regions", 5, 4, 2), in("image", 1, 8, 8, 3)}, 5, false},
		"no such picture": {[]tensor.Tensor{in("x", 2, 4), in("image_regions", 2, 4)}, 2, false},
	} {
		if rows, one := rowsOfAny(tc.give); rows != tc.rows || one != tc.one {
			t.Errorf("%s: %d rows, one %v; expected %d, %v", what, rows, one, tc.rows, tc.one)
		}
	}
}
