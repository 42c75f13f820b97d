// Package layout has no code, only tests of the tree: which room imports which, what lies at the
// top, and what pages and scripts name. They read every file, and are beside no other test, so that
// the results of other tests stay in Go's cache.
package layout

import (
	"os"
	"testing"
)

// TestMain has the tests run at the top of the tree.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
