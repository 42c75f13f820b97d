package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
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

// writeTable writes rows under head, aligned for the eye or as Markdown.
func writeTable(w io.Writer, markdown bool, head []string, rows [][]string) {
	width := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	line := func(row []string) {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = fmt.Sprintf("%-*s", width[i], cell)
			if i > 0 {
				cells[i] = fmt.Sprintf("%*s", width[i], cell)
			}
		}
		if markdown {
			fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
		} else {
			fmt.Fprintln(w, strings.Join(cells, "   "))
		}
	}
	line(head)
	if markdown {
		rule := make([]string, len(head))
		for i := range rule {
			rule[i] = strings.Repeat("-", width[i])
			if i > 0 {
				rule[i] = strings.Repeat("-", max(width[i]-1, 1)) + ":"
			}
		}
		line(rule)
	}
	for _, row := range rows {
		line(row)
	}
}
