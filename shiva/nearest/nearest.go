// Package nearest finds the names that a misspelled name may stand for.
package nearest

import (
	"cmp"
	"slices"
	"strings"
)

// Names returns up to three of names, by increasing edit distance to s, which is at most two bytes
// or a third of s, whichever is more. A name of several words, as tls-ca, one of which is s, counts
// as one byte away. The running time is proportional to the total length of names.
func Names(s string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	for _, name := range names {
		d := distance(s, name)
		if d > 1 && slices.Contains(words(name), s) {
			d = 1
		} else if d >= len(s) {
			continue
		}
		if d <= max(2, len(s)/3) {
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

// words returns the parts of a name with hyphens or underscores.
func words(name string) []string {
	return strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '_' })
}

// distance returns the number of bytes to insert, delete or replace to turn a into b (Levenshtein
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
