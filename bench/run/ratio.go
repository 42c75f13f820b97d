package main

import (
	"fmt"
	"slices"
)

// A ratio compares a system with its reference, over the rounds of this run.
type ratio struct {
	what   string
	rounds []float64
	bound  bound
	limit  float64
}

// bound is the direction of a ratio's limit.
type bound uint8

const (
	reported bound = iota // no limit
	atLeast
	atMost
)

// median is the middle of v, or the mean of the two.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// holds reports whether the median is within its limit. Without measurements it is not.
func (r ratio) holds() bool {
	switch r.bound {
	case atLeast:
		return len(r.rounds) > 0 && median(r.rounds) >= r.limit
	case atMost:
		return len(r.rounds) > 0 && median(r.rounds) <= r.limit
	default:
		return true
	}
}

func (r ratio) cells() []string {
	spread := "-"
	if len(r.rounds) > 0 {
		spread = fmt.Sprintf("%.2f..%.2f", slices.Min(r.rounds), slices.Max(r.rounds))
	}
	limit, verdict := "-", "reported"
	switch r.bound {
	case atLeast:
		limit, verdict = fmt.Sprintf(">= %g", r.limit), "pass"
	case atMost:
		limit, verdict = fmt.Sprintf("<= %g", r.limit), "pass"
	}
	if !r.holds() {
		verdict = "FAIL"
	}
	return []string{r.what, fmt.Sprintf("%.2f", median(r.rounds)), limit, spread, verdict}
}
