package load

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// WritePercentiles writes the lines that HdrHistogram's plotters parse: value, percentile, count
// and 1/(1-percentile).
func TestWritePercentiles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 3, 1000, 100_000} {
		var h Histogram
		for range n {
			h.Add(time.Duration(math.Exp(r.NormFloat64()*2 + 14)))
		}
		var b bytes.Buffer
		if err := h.WritePercentiles(&b); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if want := "Value Percentile TotalCount 1/(1-Percentile)"; strings.Join(strings.Fields(lines[0]), " ") != want ||
			lines[1] != "" {
			t.Fatalf("it begins with %q", lines[:2])
		}
		data, foot := lines[2:len(lines)-3], lines[len(lines)-3:]
		before, count := 0.0, int64(0)
		for i, line := range data {
			var value, share, beyond float64
			var total int64
			fields := 4
			if i == len(data)-1 {
				fields = 3
			}
			if got, _ := fmt.Sscan(line, &value, &share, &total, &beyond); got != fields {
				t.Fatalf("line %q has %d numbers, want %d", line, got, fields)
			}
			if want := ms(h.Quantile(share)); math.Abs(value-want) > 0.0006 || value < before || total < count ||
				float64(total) < share*float64(n)-1e-6 {
				t.Errorf("n = %d: line %q after %d: want %.3f", n, line, count, want)
			}
			if fields == 4 && math.Abs(beyond-1/(1-share)) > 0.006*beyond {
				t.Errorf("line %q: want 1/%g", line, 1-share)
			}
			before, count = value, total
		}
		if count != int64(n) || !strings.HasPrefix(foot[0], "#[Mean ") || !strings.HasPrefix(foot[1], "#[Max ") ||
			!strings.HasPrefix(foot[2], "#[Buckets ") {
			t.Errorf("n = %d ends with %d and %q", n, count, foot)
		}
	}
	var empty Histogram
	var b bytes.Buffer
	if err := empty.WritePercentiles(&b); err != nil || strings.Contains(b.String(), "NaN") {
		t.Errorf("empty: %v\n%s", err, b.String())
	}
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }
