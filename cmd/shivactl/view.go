package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shivad/shivad/server/admin"
)

// A view is what the user has chosen to see.
type view struct {
	kind   rune         // m: models, p: pipelines, s: streams
	order  map[rune]int // index in orders, by kind
	filter string
	typing bool // the filter
	from   int  // the first line of the body that is shown
}

// orders are what the models, pipelines and streams can be sorted by: a key, and the column.
var orders = map[rune][]struct {
	key    rune
	column string
}{
	'm': {{'r', "REQUESTS/S"}, {'9', "P99"}, {'l', "LOAD"}, {'w', "WAITING"}, {'f', "FAILED/S"}, {'n', "MODEL"}},
	'p': {{'r', "ROWS"}, {'9', "TOOK"}, {'n', "PIPELINE"}},
	's': {{'w', "WAITED FOR BY"}, {'a', "NEWEST ANSWER"}, {'n', "STREAM"}},
}

// sorted is the column that the view is sorted by.
func (v *view) sorted() string { return orders[v.kind][v.order[v.kind]].column }

// matches reports whether a line is not filtered out, by any of its names.
func (v *view) matches(names ...string) bool {
	for _, name := range names {
		if strings.Contains(strings.ToLower(name), strings.ToLower(v.filter)) {
			return true
		}
	}
	return false
}

// specialKey is what a terminal sends for a key without a character, such as an arrow.
var specialKey = regexp.MustCompile(`^\x1b[\[O][ -?]*[@-~]`)

// press changes the view, and reports whether to go on.
func (v *view) press(keys []byte) bool {
	for len(keys) > 0 {
		if special := specialKey.Find(keys); special != nil {
			v.move(special[len(special)-1])
			keys = keys[len(special):]
			continue
		}
		r, size := utf8.DecodeRune(keys)
		keys = keys[size:]
		if r == 0x03 || r == 'q' && !v.typing { // Ctrl-C is a key here
			return false
		}
		if v.typing {
			v.edit(r)
		} else {
			v.choose(r)
		}
	}
	return true
}

// move scrolls by the last byte of an arrow key, or sorts by the next column.
func (v *view) move(arrow byte) {
	n := len(orders[v.kind])
	switch arrow {
	case 'A':
		v.from = max(0, v.from-1)
	case 'B':
		v.from++ // draw limits it
	case 'C':
		v.order[v.kind] = (v.order[v.kind] + 1) % n
	case 'D':
		v.order[v.kind] = (v.order[v.kind] + n - 1) % n
	}
}

// edit changes the filter.
func (v *view) edit(r rune) {
	switch {
	case r == '\r' || r == '\n':
		v.typing = false
	case r == 0x1b:
		v.typing, v.filter = false, ""
	case r == 0x7f || r == '\b':
		_, size := utf8.DecodeLastRuneInString(v.filter)
		v.filter = v.filter[:len(v.filter)-size]
	case r == 0x15: // Ctrl-U
		v.filter = ""
	case unicode.IsPrint(r) && r != utf8.RuneError && len(v.filter) < 64:
		v.filter += string(r)
	}
	v.from = 0
}

func (v *view) choose(r rune) {
	for i, o := range orders[v.kind] {
		if o.key == r {
			v.order[v.kind], v.from = i, 0
			return
		}
	}
	switch {
	case r == '/':
		v.typing = true
	case r == 0x1b:
		v.filter, v.from = "", 0
	case orders[r] != nil:
		v.kind, v.from = r, 0
	}
}

// foot is the last line: the filter that is being typed, or the keys.
func (v *view) foot() string {
	if v.typing {
		return "filter: " + v.filter + "_   (Enter keeps it, Esc clears it)"
	}
	text := "by " + strings.ToLower(v.sorted()) + " · sort:"
	for _, o := range orders[v.kind] {
		text += fmt.Sprintf(" %c %s", o.key, strings.ToLower(o.column))
	}
	text += " · m models p pipelines s streams / filter q quit"
	if v.filter != "" {
		text = "only " + v.filter + " (Esc: all) · " + text
	}
	return text
}

// printView prints what a view has of a measurement.
func (c *cli) printView(v *view, t *top) {
	var g *grid
	switch v.kind {
	case 's':
		g = seenGrid(v.streams(t.Streams))
	case 'p':
		g = stageGrid(v.pipelines(t.Pipelines))
	default:
		g = modelGrid(v.models(t.Models))
	}
	if len(g.rows) == 0 {
		fmt.Fprintln(c.stdout, "none")
		return
	}
	_ = g.write(c.stdout, c.width()) // into memory
}

// models returns those that the view shows, sorted.
func (v *view) models(all []topModel) []topModel {
	list := slices.DeleteFunc(slices.Clone(all), func(m topModel) bool { return !v.matches(m.Name + "/" + m.Version) })
	slices.SortStableFunc(list, func(a, b topModel) int {
		byName := cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Version, b.Version))
		switch v.sorted() {
		case "MODEL":
			return byName
		case "P99":
			return cmp.Or(cmp.Compare(deref(b.P99), deref(a.P99)), byName)
		case "LOAD":
			return cmp.Or(cmp.Compare(b.Load, a.Load), byName)
		case "WAITING":
			return cmp.Or(cmp.Compare(b.QueueRows, a.QueueRows), byName)
		case "FAILED/S":
			return cmp.Or(cmp.Compare(b.Failed, a.Failed), byName)
		}
		return cmp.Or(cmp.Compare(b.Requests, a.Requests), byName)
	})
	return list
}

// deref returns a number that may be missing; then it is below all others.
func deref(n *float64) float64 {
	if n == nil {
		return -1
	}
	return *n
}

// pipelines returns those that the view shows, sorted. Their stages stay together, in their order.
func (v *view) pipelines(all []admin.PipelineLoad) []admin.PipelineLoad {
	list := slices.DeleteFunc(slices.Clone(all), func(p admin.PipelineLoad) bool {
		names := []string{p.Name}
		for _, s := range p.Stages {
			names = append(names, s.Stage)
		}
		return !v.matches(names...)
	})
	most := func(p admin.PipelineLoad, of func(admin.StageLoad) float64) (n float64) {
		for _, s := range p.Stages {
			n = max(n, of(s))
		}
		return n
	}
	slices.SortStableFunc(list, func(a, b admin.PipelineLoad) int {
		of := func(s admin.StageLoad) float64 { return float64(s.Rows) }
		switch v.sorted() {
		case "PIPELINE":
			return strings.Compare(a.Name, b.Name)
		case "TOOK":
			of = func(s admin.StageLoad) float64 { return s.Took }
		}
		return cmp.Or(cmp.Compare(most(b, of), most(a, of)), strings.Compare(a.Name, b.Name))
	})
	return list
}

// streams returns those that the view shows, sorted.
func (v *view) streams(all []admin.Seen) []admin.Seen {
	list := slices.DeleteFunc(slices.Clone(all), func(s admin.Seen) bool {
		return !v.matches(s.Name, s.Model, s.Client, s.Identity)
	})
	slices.SortStableFunc(list, func(a, b admin.Seen) int {
		byName := cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Model, b.Model))
		switch v.sorted() {
		case "STREAM":
			return byName
		case "NEWEST ANSWER": // the oldest first
			return cmp.Or(cmp.Compare(deref(b.Age), deref(a.Age)), byName)
		}
		return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), byName)
	})
	return list
}
