package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

// publish writes the tables into the pages that have them.
func (r results) publish(bars [][]string) error {
	err := rewrite("README.md", summaryHead(), r.summary())
	for _, s := range sizes {
		if err == nil && s.inTable {
			err = rewrite("bench/README.md", head(s), r.rows(s))
		}
	}
	if err == nil {
		err = rewrite("bench/README.md", barHead(), bars)
	}
	return err
}

// barHead is the head of the table of bars. Its words differ from those of the page's other tables
// of bars and of ratios.
func barHead() []string { return append([]string{"bar, a ratio in one run"}, ratio.Head[1:]...) }

// rewrite replaces the rows of a page's table: the one whose head begins with head's first cell.
func rewrite(file string, head []string, rows [][]string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if page, err = replace(page, head, rows); err != nil {
		return fmt.Errorf("frames: %s: %w", file, err)
	}
	return os.WriteFile(file, page, 0o644)
}

// replace replaces the table of a page whose head begins with the same cell.
func replace(page []byte, head []string, rows [][]string) ([]byte, error) {
	var out, fresh bytes.Buffer
	table.Write(&fresh, true, head, rows)
	found, inside := 0, false
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if !inside && len(cells) > 1 && strings.TrimSpace(cells[1]) == head[0] {
			found++
			inside = true
			out.Write(fresh.Bytes())
		}
		if inside = inside && strings.HasPrefix(line, "|"); !inside {
			out.WriteString(line)
		}
	}
	if found != 1 {
		return nil, fmt.Errorf("%d tables begin with the cell %q, expected one", found, head[0])
	}
	return out.Bytes(), nil
}

// summaryHead and summary are the table of README.md: models in Python, on the most common ways.
func summaryHead() []string {
	cells := []string{"model in Python"}
	for _, s := range sizes {
		if s.inTable {
			cells = append(cells, s.name+": frames/s", "CPU ms/frame")
		}
	}
	return cells
}

func (r results) summary() (rows [][]string) {
	for _, k := range []*kind{inPython, reference, pytriton, mlserver} {
		for _, w := range []*way{shivaTCP, shivaShared, grpcRaw, grpcShared} {
			row := []string{k.label + ", " + w.name}
			if k == inPython {
				row[0] = "shivad, " + w.name
			}
			for _, s := range sizes {
				if m, _, ok := r.of(many(k, w, s)); ok && s.inTable {
					row = append(row, perSecond(m.rate), milliseconds(m.cpu))
				}
			}
			if len(row) > 1 {
				rows = append(rows, row)
			}
		}
	}
	return rows
}
