package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// usualColumns is the width of output that goes to no terminal.
const usualColumns = 100

// width is the columns that output should fit into.
func (c *cli) width() int {
	if c.columns > 0 {
		return c.columns
	}
	if _, columns := terminalOf(c.stdout); columns > 0 {
		return columns
	}
	return usualColumns
}

// A grid is a table for people. If it is too wide, columns are left out: first those without any
// value, then the others, both in the order of least. If it is still too wide, its texts are
// wrapped.
type grid struct {
	head  []string // without a name in it, none is written
	least []string // the columns that may be left out, the least important first
	right bool     // columns are aligned at their right side, as numbers are
	rows  [][]string
}

func newGrid(head, least string) *grid {
	g := &grid{head: strings.Split(head, "\t")}
	if least != "" {
		g.least = strings.Split(least, "\t")
	}
	return g
}

// newList returns a grid of two columns without a head: names with what they mean.
func newList() *grid { return newGrid("\t", "") }

// add adds a row: format has a verb and a tab for each column, as the head.
func (g *grid) add(format string, args ...any) {
	row := strings.Split(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", " "), "\t")
	g.rows = append(g.rows, row[:min(len(row), len(g.head))])
}

// fit leaves out columns until the grid has a width, if it can.
func (g *grid) fit(width int) {
	for total(g.widths()) > width {
		drop := slices.IndexFunc(g.least, g.empty)
		if drop < 0 {
			drop = 0
		}
		if len(g.least) == 0 {
			return
		}
		g.leaveOut(g.least[drop])
		g.least = slices.Delete(slices.Clone(g.least), drop, drop+1)
	}
}

// leaveOut leaves out a column, if there is one of this name.
func (g *grid) leaveOut(name string) {
	i := slices.Index(g.head, name)
	if i < 0 {
		return
	}
	g.head = slices.Delete(slices.Clone(g.head), i, i+1)
	for r, row := range g.rows {
		if i < len(row) {
			g.rows[r] = slices.Delete(slices.Clone(row), i, i+1)
		}
	}
}

// empty reports whether no row has a value in a column.
func (g *grid) empty(name string) bool {
	i := slices.Index(g.head, name)
	return i >= 0 && !slices.ContainsFunc(g.rows, func(row []string) bool {
		return i < len(row) && row[i] != "" && row[i] != "0" && row[i] != "-"
	})
}

const gap = 2 // between columns

// widths returns the width of the widest cell of each column.
func (g *grid) widths() []int {
	return g.widest(utf8.RuneCountInString)
}

// widest returns the largest measure of the cells of each column.
func (g *grid) widest(measure func(cell string) int) []int {
	list := make([]int, len(g.head))
	for _, row := range append([][]string{g.head}, g.rows...) {
		for i, cell := range row {
			list[i] = max(list[i], measure(cell))
		}
	}
	return list
}

// total is the width of columns with the gaps between them.
func total(widths []int) int {
	sum := 0
	for _, n := range widths {
		sum += n
		if n > 0 {
			sum += gap
		}
	}
	return sum - gap
}

// wrap narrows the widest columns of text until all of them fit, if they can: no word is broken.
func (g *grid) wrap(widths []int, width int) {
	const text, narrowest = 20, 12 // a wider column is text; it keeps so much
	least := g.widest(longestWord)
	for i, n := range widths {
		least[i] = max(least[i], narrowest)
		if n <= text {
			least[i] = n
		}
	}
	for over := total(widths) - width; over > 0; over-- {
		widest := -1
		for i, n := range widths {
			if n > least[i] && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

func longestWord(cell string) (n int) {
	for word := range strings.SplitSeq(cell, " ") {
		n = max(n, utf8.RuneCountInString(word))
	}
	return n
}

// lines wraps a cell.
func lines(cell string, width int) (list []string) {
	line := ""
	for i, word := range strings.Split(cell, " ") {
		switch {
		case i == 0:
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			list, line = append(list, line), word
		default:
			line += " " + word
		}
	}
	return append(list, line)
}

// write writes the grid within a width.
func (g *grid) write(w io.Writer, width int) error {
	g.fit(width)
	widths := g.widths()
	g.wrap(widths, width)
	rows := g.rows
	if strings.Join(g.head, "") != "" {
		rows = append([][]string{g.head}, rows...)
	}
	var out strings.Builder
	for _, row := range rows {
		g.writeRow(&out, row, widths)
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// writeRow writes a row: as many lines as its highest cell has.
func (g *grid) writeRow(w *strings.Builder, row []string, widths []int) {
	cells, height := make([][]string, len(row)), 1
	for i, cell := range row {
		cells[i] = lines(cell, widths[i])
		height = max(height, len(cells[i]))
	}
	for n := range height {
		line := ""
		for i, width := range widths {
			if width == 0 {
				continue
			}
			cell := ""
			if i < len(cells) && n < len(cells[i]) {
				cell = cells[i][n]
			}
			fill := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell)))
			if g.right {
				line += fill + cell
			} else {
				line += cell + fill
			}
			line += strings.Repeat(" ", gap)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}
