package selection

import (
	"os"
	"testing"

	"github.com/shivad/shivad/examples/digits"
)

// The builds are as good as the README states, on which the run relies: better ones take longer,
// and the second build of sharp is the worst of all.
func TestQuality(t *testing.T) {
	heldOut, err := os.ReadFile("../digits/heldout.u8")
	if err != nil {
		t.Fatal(err)
	}
	network, err := digits.Load()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{354, 151, 324, 278} {
		b, right := Builds[i], 0
		for row := heldOut; len(row) > 0; row = row[digits.Pixels+1:] {
			if b.Infer(network, row) == int(row[digits.Pixels]) {
				right++
			}
		}
		if right != want {
			t.Errorf("%s/%s: %d of 359 right, expected %d", b.Name, b.Version, right, want)
		}
	}
	if _, err := Find("inked", "2"); err == nil {
		t.Error("found a build that there is not")
	}
}
