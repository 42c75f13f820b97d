package load

import (
	"bufio"
	"fmt"
	"io"
	"math"
)

// ticksPerHalf is the number of lines for each halving of the share beyond a percentile, as by
// default in HdrHistogram's own tools.
const ticksPerHalf = 5

// WritePercentiles writes the distribution in the text format of HdrHistogram (".hgrm"), with
// values in milliseconds, which its plotters read:
//
//	       Value     Percentile TotalCount 1/(1-Percentile)
//
//	       1.245 0.500000000000       5000           2.00
//	#[Mean    =        1.301, StdDeviation   =        0.412]
//	#[Max     =        9.713, Total count    =        10000]
//	#[Buckets =           58, SubBuckets     =           64]
func (h *Histogram) WritePercentiles(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "%12s %14s %10s %14s\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)")
	milliseconds := func(v int64) float64 { return float64(v) / 1e6 }
	var seen uint64
	tick := 0 // of the next line
	for i, c := range h.counts {
		if c == 0 {
			continue
		}
		seen += c
		value := milliseconds(min(upper(i), h.max))
		for ; seen < h.n && seen >= h.rank(tickShare(tick)); tick++ {
			fmt.Fprintf(b, "%12.3f %2.12f %10d %14.2f\n", value, tickShare(tick), seen, 1/(1-tickShare(tick)))
		}
		if seen == h.n {
			fmt.Fprintf(b, "%12.3f %2.12f %10d\n", value, 1.0, seen)
			break
		}
	}
	fmt.Fprintf(b, "#[Mean    = %12.3f, StdDeviation   = %12.3f]\n", float64(h.Mean())/1e6, h.deviation()/1e6)
	fmt.Fprintf(b, "#[Max     = %12.3f, Total count    = %12d]\n", milliseconds(h.max), h.n)
	fmt.Fprintf(b, "#[Buckets = %12d, SubBuckets     = %12d]\n", 64-subBits, 1<<subBits)
	return b.Flush()
}

// tickShare is the percentile of line i as a share: the rest beyond it halves with every
// ticksPerHalf lines.
func tickShare(i int) float64 {
	return 1 - math.Pow(2, -float64(i/ticksPerHalf))*(1-float64(i%ticksPerHalf)/(2*ticksPerHalf))
}

// deviation is the standard deviation, to within the width of the buckets.
func (h *Histogram) deviation() float64 {
	if h.n == 0 {
		return 0
	}
	mean, squares := h.sum/float64(h.n), 0.0
	for i, c := range h.counts {
		if c > 0 {
			d := float64(min(upper(i), h.max)) - mean
			squares += float64(c) * d * d
		}
	}
	return math.Sqrt(squares / float64(h.n))
}
