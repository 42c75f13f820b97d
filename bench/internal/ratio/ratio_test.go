package ratio

import (
	"slices"
	"testing"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		r    Ratio
		want []string
	}{
		{Ratio{What: "a", Rounds: []float64{0.7, 0.2, 0.6}, Bound: AtLeast, Limit: 0.6},
			[]string{"a", "0.60", ">= 0.6", "0.20..0.70", "pass"}},
		{Ratio{What: "b", Rounds: []float64{0.59}, Bound: AtLeast, Limit: 0.6},
			[]string{"b", "0.59", ">= 0.6", "0.59..0.59", "FAIL"}},
		{Ratio{What: "c", Rounds: []float64{2, 4, 3, 3.2}, Bound: AtMost, Limit: 3},
			[]string{"c", "3.10", "<= 3", "2.00..4.00", "FAIL"}},
		{Ratio{What: "d", Rounds: []float64{0, 0}, Bound: AtMost, Limit: 0},
			[]string{"d", "0.00", "<= 0", "0.00..0.00", "pass"}},
		{Ratio{What: "e", Rounds: []float64{9}}, []string{"e", "9.00", "-", "9.00..9.00", "reported"}},
		{Ratio{What: "not measured", Bound: AtMost, Limit: 3}, []string{"not measured", "0.00", "<= 3", "-", "FAIL"}},
	} {
		if got := c.r.Cells(); !slices.Equal(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
