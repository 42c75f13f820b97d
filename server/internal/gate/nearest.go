package gate

import (
	"cmp"
	"slices"
)

// nearest returns up to three of names, those with the smallest edit distance to s, as long as no more than
// half of s would have to change.
func nearest(s string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var close []candidate
	for _, name := range names {
		if d := editDistance(s, name); d <= max(len(s), 2)/2 {
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

// editDistance is Levenshtein's, on bytes.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
