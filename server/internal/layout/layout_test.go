// Package layout has no code, only tests of the tree: which package imports which, what lies at the
// top, and what pages and scripts refer to. They read every file, and are in a package of their
// own, so that the results of other tests stay in Go's cache.
package layout

import "testing"

// atTop has a test run at the top of the tree. Each test calls it, as TestMain must not: Go's cache
// of results learns of a change of directory only within a test. Otherwise it looks for the files
// that were read in the wrong place, and takes any later tree for the same.
func atTop(t *testing.T) {
	t.Helper()
	t.Chdir("../../..")
}
