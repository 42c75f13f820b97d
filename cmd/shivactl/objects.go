package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"image"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

// An object is what a detector found in a picture, in the pixels of the picture.
type object struct {
	label   string
	class   int // 0 if the detector does not say it
	score   float64
	box     []float64 // x_min, y_min, x_max, y_max
	corners []float64 // x, y of each corner of a turned box; nil: it is upright
	points  []point   // of a pose
	mask    mask      // the pixels of the object; empty: they are not known
}

// A point is a place of an object, such as an eye.
type point struct {
	x, y float64
	seen float64 // how sure it is that the point is visible, 0 to 1
}

// detects reports whether a model answers objects: boxes with scores and labels, of a number that
// differs from row to row.
func detects(m model) bool {
	for _, name := range []string{"boxes", "scores", "labels"} {
		if !slices.ContainsFunc(m.outputs, func(s spec) bool { return s.Name == name && s.Ragged != "" }) {
			return false
		}
	}
	return true
}

// objects returns what a detector found in each row of a result.
func objects(m model, r result) ([][]object, error) {
	broken := func(format string, args ...any) error {
		return &failure{"protocol", fmt.Sprintf(format, args...), "the log of the model's container may say more",
			exitRefused}
	}
	n := m.length("boxes", r.outputs, 0, r.rows)
	// Another model of an application may answer without them.
	if !slices.ContainsFunc(r.outputs, func(t tensor.Tensor) bool {
		return t.Name == "boxes" && len(t.Shape) > 0 && t.Shape[0] == n
	}) {
		return nil, broken("the answer has no boxes of %s", plural.Of(n, "object"))
	}
	rows, all := make([][]object, r.rows), make([]object, n)
	for _, t := range r.outputs {
		if err := describe(all, t); err != nil {
			return nil, broken("output %q: %v", t.Name, err)
		}
	}
	for i := range rows {
		rows[i] = all[m.length("boxes", r.outputs, 0, i):m.length("boxes", r.outputs, 0, i+1)]
	}
	return rows, nil
}

// describe adds to all objects what an output says of them.
func describe(all []object, t tensor.Tensor) error {
	n, shown := 0, false
	switch t.Name {
	case "boxes":
		n, shown = 4, true
	case "scores", "classes", "labels", "masks":
		n, shown = 1, true
	case "corners":
		n, shown = 8, true
	case "keypoints":
		if shown = len(t.Shape) == 3 && t.Shape[2] >= 2; shown {
			n = t.Shape[1] * t.Shape[2]
		}
	}
	if !shown {
		return nil
	}
	if elements, _ := t.Shape.Elements(); elements != n*len(all) {
		return fmt.Errorf("%s for %s, expected %d", plural.Of(elements, "element"),
			plural.Of(len(all), "object"), n*len(all))
	}
	if t.DType == tensor.Bytes {
		texts, err := tensor.Strings(t)
		for i, text := range texts {
			if t.Name == "labels" {
				all[i].label = text
			} else if err := json.Unmarshal([]byte(text), &all[i].mask); err != nil {
				return fmt.Errorf("mask %d: %w", i, err)
			}
		}
		return err
	}
	numbers, err := tensor.Cast(t, tensor.Float64, nil)
	if err != nil {
		return err
	}
	values, err := tensor.Values[float64](numbers)
	if err != nil {
		return err
	}
	for i := range all {
		of := values[i*n : (i+1)*n]
		switch t.Name {
		case "boxes":
			all[i].box = of
		case "scores":
			all[i].score = of[0]
		case "classes":
			all[i].class = int(of[0])
		case "corners":
			all[i].corners = of
		case "keypoints":
			for p := range slices.Chunk(of, t.Shape[2]) {
				seen := 1.0
				if len(p) > 2 {
					seen = p[2]
				}
				all[i].points = append(all[i].points, point{p[0], p[1], seen})
			}
		}
	}
	return nil
}

// printObjects prints a table with a line for each object, then the failures.
func (c *cli) printObjects(m model, results []result, o *inferOptions) error {
	head := "FILE\tLABEL\tSCORE\tBOX"
	if o.timing {
		head += "\tTIME"
	}
	g := newGrid(head, "")
	for i, r := range results {
		if r.err != nil {
			continue
		}
		rows, err := objects(m, r)
		if err != nil {
			results[i].err = err.(*failure)
			continue
		}
		for row, found := range rows {
			name := r.name
			if r.rows > 1 {
				name += fmt.Sprintf("[%d]", row)
			}
			took := timing(r) // beside the first object
			for _, f := range found {
				g.add("%s\t%s\t%.3f\t%s\t%s", name, f.label, f.score, pixels(f.box), took)
				took = ""
			}
			if len(found) == 0 {
				g.add("%s\t-\t\t\t%s", name, took)
			}
		}
	}
	if len(g.rows) == 0 {
		return c.reportFailed(results)
	}
	return cmp.Or(g.write(c.stdout, c.width()), c.reportFailed(results))
}

// pixels lists coordinates to a tenth of a pixel.
func pixels(values []float64) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// A mask is the pixels of an object, as COCO writes them.
type mask struct {
	Size   []int  `json:"size"`   // height, width
	Counts string `json:"counts"` // the runs, compressed
}

// each calls what for every pixel of the mask, which is of a picture of this size. Runs go down the
// columns: of pixels outside, then inside, and so on. Each is written as its difference to the run
// before the last, in digits of five bits, the lowest first.
func (m mask) each(size image.Point, what func(x, y int)) error {
	if m.Counts == "" {
		return nil
	}
	if len(m.Size) != 2 || m.Size[0] != size.Y || m.Size[1] != size.X {
		return fmt.Errorf("a mask is of the size %v, and the picture %v (height and width)", m.Size,
			[]int{size.Y, size.X})
	}
	var runs []int
	at, digits, value := 0, 0, 0
	for _, c := range []byte(m.Counts) {
		digit := int(c) - 48
		if digit < 0 || digit > 63 || digits > 8 {
			return fmt.Errorf("a mask has %q among its counts", c)
		}
		value |= digit & 31 << (5 * digits)
		digits++
		if digit&32 != 0 {
			continue
		}
		if digit&16 != 0 {
			value -= 1 << (5 * digits)
		}
		if len(runs) > 2 {
			value += runs[len(runs)-2]
		}
		if value < 0 || value > size.X*size.Y-at {
			return fmt.Errorf("a mask of %v has a run of %d at %d", m.Size, value, at)
		}
		for i := at; len(runs)%2 == 1 && i < at+value; i++ {
			what(i/size.Y, i%size.Y)
		}
		runs = append(runs, value)
		at, digits, value = at+value, 0, 0
	}
	return nil
}
