// Package manualtest keeps pages of the manual that are made of tables in the code: settings,
// metrics, parameters, commands.
package manualtest

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update-manual", false, "write the pages of the manual that are made of tables")

// Page fails the test unless a page, by its path from the test's folder, is what the table says.
// With -update-manual it writes the page.
func Page(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != want {
		t.Errorf("%s is not what the table says (%v): add -update-manual to write it", file, err)
	}
}
