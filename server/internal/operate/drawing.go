package operate

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/admin"
)

// Sizes of a drawing, in its own unit: pixels, unless it is scaled.
const (
	drawnLine   = 17  // between two lines of text
	drawnLetter = 7.2 // of a fixed width at the size 12
	drawnPad    = 10  // around the text of a box
	drawnGap    = 96  // between two columns of boxes, for the names on the arrows
	drawnSpace  = 22  // between two boxes of a column
	drawnEdge   = 12  // around everything
)

// A drawing is a pipeline as boxes in columns, from the request on the left to the answer on the
// right, and arrows.
type drawing struct {
	boxes   []*box
	columns [][]*box
	arrows  []arrow
}

// A box is the request, a stage or the answer.
type box struct {
	name          string
	lines         []string
	figures       string // the last line; "" for what is no stage
	column        int
	x, y, w, h    float64
	out, in       int // arrows that begin and end here
	leaves, comes int // of these, drawn so far
}

// An arrow is a value that goes from one box to another.
type arrow struct {
	from, to *box
	label    string
	each     bool // its elements become rows
}

// drawPipeline returns a pipeline as SVG. figures says in a few words how a stage does. In the page
// the colours of the elements are those of their classes, elsewhere those of their attributes.
func drawPipeline(p admin.Pipeline, figures func(stage string) string) []byte {
	d := arrange(p, figures)
	width, height := d.layOut()
	var b bytes.Buffer
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" class="pipeline" role="img" aria-label="%s" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12">`+
			"\n",
		escaped("pipeline "+p.Name), width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", escaped("pipeline "+p.Name))
	b.WriteString(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" markerUnits="userSpaceOnUse" orient="auto"><path class="tip" fill="#555" d="M0 0L8 4L0 8z"/></marker></defs>` +
		"\n")
	for _, a := range d.arrows {
		a.draw(&b)
	}
	for _, one := range d.boxes {
		one.draw(&b)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// arrange makes the boxes and the arrows.
func arrange(p admin.Pipeline, figures func(stage string) string) *drawing {
	d := &drawing{}
	request := &box{name: "request", lines: slices.Clone(p.Inputs)}
	stages := map[string]*box{}
	for _, s := range p.Stages {
		stages[s.Name] = &box{name: s.Name, lines: stageLines(s), figures: figures(s.Name), column: 1}
	}
	join := func(to *box, reference, label string, each bool) {
		from, output := request, reference
		if name, of, dotted := strings.Cut(reference, "."); dotted && stages[name] != nil {
			from, output = stages[name], of
		}
		if label != "" && label != output {
			output += " → " + label
		}
		d.arrows = append(d.arrows, arrow{from, to, output, each})
		from.out++
		to.in++
	}
	for _, s := range p.Stages {
		for _, input := range slices.Sorted(maps.Keys(s.Inputs)) {
			if s.Inputs[input] != s.Each {
				join(stages[s.Name], s.Inputs[input], input, false)
			}
		}
		if s.Each != "" {
			join(stages[s.Name], s.Each, "", true)
		}
	}
	for range p.Stages { // the longest way to a stage has no more arrows than there are stages
		for _, a := range d.arrows {
			a.to.column = max(a.to.column, a.from.column+1)
		}
	}
	answer := &box{name: "answer", column: 1}
	for _, one := range stages {
		answer.column = max(answer.column, one.column+1)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Outputs)) {
		answer.lines = append(answer.lines, name)
		join(answer, p.Outputs[name], name, false)
	}
	if len(p.Outputs) == 0 {
		for _, s := range p.Stages {
			join(answer, s.Name+".all", "", false)
		}
	}
	d.boxes = append(d.boxes, request)
	for _, s := range p.Stages {
		d.boxes = append(d.boxes, stages[s.Name])
	}
	d.boxes = append(d.boxes, answer)
	return d
}

// stageLines are what the box of a stage says below its name.
func stageLines(s admin.Stage) []string {
	lines := []string{s.Model}
	lines = append(lines, s.Keep.Conditions()...)
	if s.Margin != 0 {
		lines = append(lines, fmt.Sprintf("margin %.4g", s.Margin))
	}
	if s.Timeout != "" {
		lines = append(lines, "within "+s.Timeout)
	}
	if s.Required != nil && *s.Required && s.Each != "" {
		lines = append(lines, "required")
	}
	return lines
}

// layOut gives every box its size and its place, and returns the size of the whole.
func (d *drawing) layOut() (width, height float64) {
	for _, one := range d.boxes {
		longest := 0
		for _, line := range append([]string{one.name, one.figures}, one.lines...) {
			longest = max(longest, len([]rune(line)))
		}
		lines := 1 + len(one.lines)
		if one.figures != "" {
			lines++
		}
		one.w, one.h = 2*drawnPad+drawnLetter*float64(longest), 2*drawnPad+drawnLine*float64(lines)-5
		for len(d.columns) <= one.column {
			d.columns = append(d.columns, nil)
		}
		d.columns[one.column] = append(d.columns[one.column], one)
	}
	tall := func(column []*box) (h float64) {
		for _, one := range column {
			h += one.h + drawnSpace
		}
		return h - drawnSpace
	}
	for _, column := range d.columns {
		height = max(height, tall(column))
	}
	x := float64(drawnEdge)
	for _, column := range d.columns {
		wide, y := 0.0, drawnEdge+(height-tall(column))/2
		for _, one := range column {
			one.x, one.y = x, y
			y += one.h + drawnSpace
			wide = max(wide, one.w)
		}
		x += wide + drawnGap
	}
	return x - drawnGap + drawnEdge, height + 2*drawnEdge
}

// draw writes an arrow, with its name above its middle.
func (a arrow) draw(b *bytes.Buffer) {
	a.from.leaves++
	a.to.comes++
	x0, y0 := a.from.x+a.from.w, a.from.y+a.from.h*float64(a.from.leaves)/float64(a.from.out+1)
	x1, y1 := a.to.x-1, a.to.y+a.to.h*float64(a.to.comes)/float64(a.to.in+1)
	class, thick := "arrow", "1.2"
	label := a.label
	if a.each {
		class, thick, label = "arrow each", "2.6", "each "+a.label
	}
	middle := (x0 + x1) / 2
	fmt.Fprintf(b,
		`<path class="%s" fill="none" stroke="#555" stroke-width="%s" marker-end="url(#tip)" d="M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f"/>`+
			"\n",
		class, thick, x0, y0, middle, y0, middle, y1, x1, y1)
	fmt.Fprintf(b, `<text class="label" fill="#555" font-size="10" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`+"\n",
		x1-drawnGap/2, y1-4+(y0-y1)/8, escaped(label))
}

// draw writes a box with its text.
func (one *box) draw(b *bytes.Buffer) {
	class, fill := "stage", "#fff"
	if one.figures == "" {
		class, fill = "end", "#f2f2f2"
	}
	fmt.Fprintf(b, `<rect class="%s" fill="%s" stroke="#555" rx="6" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n",
		class, fill, one.x, one.y, one.w, one.h)
	y := one.y + drawnPad + 9
	write := func(attributes, text string) {
		fmt.Fprintf(b, `<text fill="#222" x="%.1f" y="%.1f"%s>%s</text>`+"\n", one.x+drawnPad, y, attributes,
			escaped(text))
		y += drawnLine
	}
	write(` font-weight="bold"`, one.name)
	for _, line := range one.lines {
		write("", line)
	}
	if one.figures != "" {
		write(fmt.Sprintf(` class="figures" data-stage="%s"`, escaped(one.name)), one.figures)
	}
}

// escaped returns a text for XML.
func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}
