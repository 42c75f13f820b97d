package operate

import (
	"slices"
	"testing"

	"github.com/shivad/shivad/containers"
)

func TestLastLines(t *testing.T) {
	for _, c := range []struct{ printed, want []string }{
		{nil, nil},
		{[]string{"no weights", "no weights", "no weights"}, []string{"no weights"}},
		{[]string{"a", "b", "b", "c", "d", "d"}, []string{"b", "c", "d"}},
		{[]string{"why", "warm", "why", "warm", "why"}, []string{"warm", "why"}},
	} {
		if got := lastLines(containers.ProcessInfo{LastLines: c.printed}); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, expected %q", c.printed, got, c.want)
		}
	}
}
