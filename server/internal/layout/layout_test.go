// Package layout has no code, only tests of the tree: which package imports which, what lies at the
// top, and what pages and scripts refer to. They read every file, and are in a package of their
// own, so that the results of other tests stay in Go's cache.
package layout

import (
	"os"
	"testing"
)

// TestMain runs the tests at the top of the tree.
func TestMain(m *testing.M) {
	if err := os.Chdir("../../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
