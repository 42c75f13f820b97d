package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
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
// value, then the others, both in the order of least.
type grid struct {
	head  []string
	least []string // the columns that may be left out, the least important first
	rows  [][]string
}

func newGrid(head, least string) *grid {
	return &grid{head: strings.Split(head, "\t"), least: strings.Split(least, "\t")}
}

// add adds a row: format has a verb and a tab for each column, as the head.
func (g *grid) add(format string, args ...any) {
	row := strings.Split(fmt.Sprintf(format, args...), "\t")
	g.rows = append(g.rows, row[:min(len(row), len(g.head))])
}

// fit leaves out columns until the grid has a width, if it can.
func (g *grid) fit(width int) {
	for g.columns() > width {
		drop := slices.IndexFunc(g.least, g.empty)
		if drop < 0 {
			drop = 0
		}
		if len(g.least) == 0 {
			return
		}
		i := slices.Index(g.head, g.least[drop])
		g.least = slices.Delete(slices.Clone(g.least), drop, drop+1)
		if i < 0 {
			continue
		}
		g.head = slices.Delete(slices.Clone(g.head), i, i+1)
		for r, row := range g.rows {
			if i < len(row) {
				g.rows[r] = slices.Delete(slices.Clone(row), i, i+1)
			}
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

func (g *grid) columns() int {
	sum := -gap
	for i, name := range g.head {
		widest := utf8.RuneCountInString(name)
		for _, row := range g.rows {
			if i < len(row) {
				widest = max(widest, utf8.RuneCountInString(row[i]))
			}
		}
		sum += widest + gap
	}
	return sum
}

// write writes the grid within a width.
func (g *grid) write(w io.Writer, width int) error {
	g.fit(width)
	t := tabwriter.NewWriter(w, 0, 0, gap, ' ', 0)
	for _, row := range append([][]string{g.head}, g.rows...) {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// writeList writes names with what they mean, which is wrapped.
func writeList(w io.Writer, width int, list [][2]string) {
	indent := 0
	for _, one := range list {
		if one[0] != "" {
			indent = max(indent, len(one[0])+gap)
		}
	}
	for _, one := range list {
		fmt.Fprintf(w, "%-*s", indent, one[0])
		column := indent
		for word := range strings.SplitSeq(one[1], " ") {
			n := utf8.RuneCountInString(word)
			if column > indent && column+1+n > width {
				fmt.Fprintf(w, "\n%s", strings.Repeat(" ", indent))
				column = indent
			} else if column > indent {
				fmt.Fprint(w, " ")
				column++
			}
			fmt.Fprint(w, word)
			column += n
		}
		fmt.Fprintln(w)
	}
}
