// Package nearest finds what somebody may have meant who misspelled a name.
package nearest

import (
	"cmp"
	"slices"
)

// Names returns up to three of names, those with the smallest edit distance to s first, as long
// as no more than two bytes or a third of s would have to change. It takes time in proportion
// to the length of all names.
func Names(s string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	for _, name := range names {
		if d := distance(s, name); d <= max(2, len(s)/3) && d < len(s) {
			close = append(close, candidate{name, d})
		}
	}
	slices.SortStableFunc(close, func(a, b candidate) int { return cmp.Compare(a.distance, b.distance) })
	var out []string
	for _, c := range close[:min(len(close), 3)] {
		out = append(out, c.name)
	}
	return out
}

// distance is the number of bytes to insert, delete or replace to get from a to b (Levenshtein
// 1966).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}
