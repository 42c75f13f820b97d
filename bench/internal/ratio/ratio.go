// Package ratio compares figures of one system with those of another in the same round, and holds
// the ratios to limits.
package ratio

import (
	"fmt"
	"slices"
)

// A Ratio compares a system with its reference, over the rounds of this run.
type Ratio struct {
	What   string
	Rounds []float64
	Bound  Bound
	Limit  float64
}

// Bound is the direction of a ratio's limit.
type Bound uint8

const (
	Reported Bound = iota // no limit
	AtLeast
	AtMost
)

// Median returns the middle value of v, or the mean of the two.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// Holds reports whether the median is within its limit. Without measurements it returns false.
func (r Ratio) Holds() bool {
	switch r.Bound {
	case AtLeast:
		return len(r.Rounds) > 0 && Median(r.Rounds) >= r.Limit
	case AtMost:
		return len(r.Rounds) > 0 && Median(r.Rounds) <= r.Limit
	default:
		return true
	}
}

// Head names the columns of a table of ratios.
var Head = []string{"ratio", "median", "limit", "rounds", "verdict"}

// Cells returns the row of r in that table.
func (r Ratio) Cells() []string {
	spread := "-"
	if len(r.Rounds) > 0 {
		spread = fmt.Sprintf("%.2f..%.2f", slices.Min(r.Rounds), slices.Max(r.Rounds))
	}
	limit, verdict := "-", "reported"
	switch r.Bound {
	case AtLeast:
		limit, verdict = fmt.Sprintf(">= %g", r.Limit), "pass"
	case AtMost:
		limit, verdict = fmt.Sprintf("<= %g", r.Limit), "pass"
	}
	if !r.Holds() {
		verdict = "FAIL"
	}
	return []string{r.What, fmt.Sprintf("%.2f", Median(r.Rounds)), limit, spread, verdict}
}
