package operate

import (
	"fmt"
	"math"
	"strconv"
)

// figure formats a number for a sentence: three digits at most, and none that nobody reads.
func figure(n float64) string {
	switch {
	case n > 0 && n < 0.01:
		return "under 0.01"
	case n < 1:
		return strconv.FormatFloat(math.Round(100*n)/100, 'f', -1, 64)
	}
	unit := math.Pow(10, math.Floor(math.Log10(n))-2)
	whole := math.Round(n / unit) // three digits, or four
	if unit < 1 {
		return strconv.FormatFloat(whole/math.Round(1/unit), 'f', -1, 64)
	}
	return strconv.FormatFloat(whole*unit, 'f', -1, 64)
}

// perSecond formats a rate of something, and a slow one per minute.
func perSecond(n float64, of string) string {
	if n == 0 || n >= 1 {
		return figure(n) + " " + of + "/s"
	}
	return figure(60*n) + " " + of + "/min"
}

// percent formats a share.
func percent(n, of uint64) string {
	return fmt.Sprintf("%s %%", figure(100*float64(n)/float64(max(of, 1))))
}
