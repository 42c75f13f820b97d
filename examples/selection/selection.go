// Package selection has three models of handwritten digits, and a bad build of the best of them.
// All use the network of examples/digits; they differ in the preprocessing of an image, and in
// their execution time.
package selection

import (
	"fmt"
	"time"

	"github.com/shivad/shivad/examples/digits"
)

// A Build is one version of a model.
type Build struct {
	Name, Version string
	Takes         time.Duration // execution time of a batch
	sees          func(seen, image *[digits.Pixels]byte)
}

// Models are the names of the models, the best first.
var Models = []string{"sharp", "inked", "blurred"}

// Builds are all builds. The second build of sharp has a common mistake: it mirrors its images.
var Builds = []Build{
	{"sharp", "1", 4 * time.Millisecond, func(seen, image *[digits.Pixels]byte) { *seen = *image }},
	{"sharp", "2", 4 * time.Millisecond, mirror},
	{"inked", "1", 2 * time.Millisecond, ink},
	{"blurred", "1", time.Millisecond, blur},
}

// Find returns the build of a model version.
func Find(name, version string) (Build, error) {
	for _, b := range Builds {
		if b.Name == name && b.Version == version {
			return b, nil
		}
	}
	return Build{}, fmt.Errorf("selection: there is no version %q of a model %q", version, name)
}

// Infer returns the digit that the build recognises in an image of digits.Pixels bytes.
func (b Build) Infer(n *digits.Network, image []byte) int {
	var seen [digits.Pixels]byte
	var scores [digits.Classes]float32
	b.sees(&seen, (*[digits.Pixels]byte)(image))
	return n.Infer(seen[:], scores[:])
}

// mirror swaps left and right.
func mirror(seen, image *[digits.Pixels]byte) {
	for i, p := range image {
		seen[i^(digits.Side-1)] = p
	}
}

// ink reduces the image to black and white.
func ink(seen, image *[digits.Pixels]byte) {
	for i, p := range image {
		if p >= 64 {
			seen[i] = 255
		}
	}
}

// blur gives each pixel the mean of itself and its neighbours.
func blur(seen, image *[digits.Pixels]byte) {
	for y := range digits.Side {
		for x := range digits.Side {
			sum, n := 0, 0
			for v := max(0, y-1); v <= min(y+1, digits.Side-1); v++ {
				for u := max(0, x-1); u <= min(x+1, digits.Side-1); u++ {
					sum += int(image[v*digits.Side+u])
					n++
				}
			}
			seen[y*digits.Side+x] = byte(sum / n)
		}
	}
}
