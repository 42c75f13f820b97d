package plural_test

import (
	"testing"

	"github.com/shivad/shivad/shiva/plural"
)

func TestPlural(t *testing.T) {
	for n, want := range []string{"0 rows, 0 processes", "1 row, 1 process", "2 rows, 2 processes"} {
		if got := plural.Of(n, "row") + ", " + plural.Words(uint64(n), "process", "processes"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
