// Package plural writes counts in sentences: 1 row, 2 rows.
package plural

import "fmt"

// Integer is the type of a count.
type Integer interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64
}

// Of returns a number of things with their word, which takes an s.
func Of[N Integer](n N, word string) string { return Words(n, word, word+"s") }

// Words returns a number of things with the words that follow it for one and for several.
func Words[N Integer](n N, one, several string) string {
	if n == 1 {
		several = one
	}
	return fmt.Sprintf("%d %s", n, several)
}
