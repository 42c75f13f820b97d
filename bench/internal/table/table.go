// Package table writes the tables that benches print.
package table

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Write writes rows under head, as aligned text or as Markdown.
func Write(w io.Writer, markdown bool, head []string, rows [][]string) {
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
