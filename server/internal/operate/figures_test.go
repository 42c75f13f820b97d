package operate

import "testing"

// Figures have three digits at most, and are in a unit that people count in.
func TestFigures(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.002: "under 0.01", 0.126: "0.13", 1: "1", 8.5: "8.5", 9.999: "10",
		12.346: "12.3", 120: "120", 1631: "1630", 999.7: "1000", 1234567: "1230000"} {
		if got := figure(n); got != want {
			t.Errorf("%v is %q, expected %q", n, got, want)
		}
	}
	for n, want := range map[float64]string{0: "0 rows/s", 0.00197: "0.12 rows/min", 0.5: "30 rows/min",
		0.00001: "under 0.01 rows/min", 1.5: "1.5 rows/s"} {
		if got := perSecond(n, "rows"); got != want {
			t.Errorf("%v a second is %q, expected %q", n, got, want)
		}
	}
}
