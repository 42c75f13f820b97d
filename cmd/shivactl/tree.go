package main

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/shivad/shivad/shiva/nested"
	"github.com/shivad/shivad/shiva/tensor"
)

// trees returns what the stages of a pipeline answered for each row of a result.
func trees(m model, r result) ([]*nested.Object, error) {
	declared := make([]tensor.Spec, len(m.outputs))
	for i := range m.outputs {
		declared[i] = m.outputs[i].Spec
	}
	rows, err := m.pipeline.Of(declared, r.outputs, r.rows)
	if err != nil {
		return nil, &failure{"protocol", fmt.Sprintf("unusable answer: %v", err),
			"is this shivactl as new as the server? shivactl version", exitRefused}
	}
	return rows, nil
}

// printTrees prints each row as a tree of its stages, of what they have found, and of what later
// stages say of that; then the failures.
func (c *cli) printTrees(m model, results []result, o *inferOptions) error {
	for i, r := range results {
		if r.err != nil {
			continue
		}
		rows, err := trees(m, r)
		if err != nil {
			results[i].err = err.(*failure)
			continue
		}
		for row, one := range rows {
			name := r.name
			if r.rows > 1 {
				name += fmt.Sprintf("[%d]", row)
			}
			if o.timing {
				name += "  " + timing(r)
			}
			fmt.Fprintln(c.stdout, name)
			c.printBranches(one, "  ", o.top)
		}
	}
	return c.reportFailed(results)
}

// printBranches prints the stages and the lists of an object, a line for each, with what they have
// indented below.
func (c *cli) printBranches(o *nested.Object, indent string, top int) {
	for _, f := range o.Fields {
		switch {
		case f.Object != nil:
			fmt.Fprintf(c.stdout, "%s%s%s\n", indent, f.Name, valuesOf(f.Object, top))
			c.printBranches(f.Object, indent+"  ", top)
		case f.List != nil && len(f.List) == 0:
			fmt.Fprintf(c.stdout, "%s%s: none\n", indent, f.Name)
		case f.List != nil:
			for i, one := range f.List {
				fmt.Fprintf(c.stdout, "%s%s[%d]%s\n", indent, f.Name, i, valuesOf(one, top))
				c.printBranches(one, indent+"  ", top)
			}
		}
	}
}

// valuesOf formats the values of an object, to follow its name. What a detector says comes first,
// and needs no names.
func valuesOf(o *nested.Object, top int) string {
	var known, others []string
	for _, f := range o.Fields {
		if f.Object != nil || f.List != nil {
			continue
		}
		t := f.Value
		// A value is the only row of its output.
		t.Shape = append(tensor.Shape{1}, t.Shape...)
		text := cell(t, 0, 1, top, f.Labels)
		switch {
		case f.Output == "" && f.Name == "status":
			code, _ := strconv.Atoi(text)
			known = append([]string{strings.TrimSpace("failed: " + text + " " + http.StatusText(code))}, known...)
		case f.Output == "labels":
			texts, _ := tensor.Strings(f.Value)
			known = append([]string{strings.Join(texts, " ")}, known...)
		case f.Output == "scores", f.Output == "boxes":
			if values, err := numbersOf(f.Value); err == nil && f.Output == "boxes" {
				text = pixels(values)
			}
			known = append(known, text)
		case f.Output == "masks": // runs that nobody reads
		default:
			others = append(others, f.Name+" "+text)
		}
	}
	all := append(known, others...)
	if len(all) == 0 {
		return ""
	}
	return "  " + strings.Join(all, "  ")
}

// numbersOf returns the elements of a value.
func numbersOf(t tensor.Tensor) ([]float64, error) {
	wide, err := tensor.Cast(t, tensor.Float64, nil)
	if err != nil {
		return nil, err
	}
	return tensor.Values[float64](wide)
}

// drawn returns the objects with boxes in a tree, each with the texts that later stages say of it.
func drawn(o *nested.Object) ([]object, error) {
	var all []object
	for _, f := range o.Fields {
		children := f.List
		if f.Object != nil {
			children = []*nested.Object{f.Object}
		}
		for _, child := range children {
			one := make([]object, 1)
			// A classifier has scores, too: of its classes.
			boxed := slices.ContainsFunc(child.Fields, func(f nested.Field) bool { return f.Output == "boxes" })
			for _, v := range child.Fields {
				if !boxed || v.Object != nil || v.List != nil {
					continue
				}
				t := v.Value
				t.Name, t.Shape = v.Output, append(tensor.Shape{1}, t.Shape...)
				if err := describe(one, t); err != nil {
					return nil, fmt.Errorf("output %q: %v", v.Name, err)
				}
			}
			if one[0].box != nil {
				one[0].label = strings.TrimSpace(strings.Join(append([]string{one[0].label}, said(child)...), " "))
				all = append(all, one[0])
			}
			below, err := drawn(child)
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
	}
	return all, nil
}

// said lists the short texts that the stages below an object answered.
func said(o *nested.Object) (list []string) {
	for _, f := range o.Fields {
		if f.Object == nil {
			continue
		}
		for _, v := range f.Object.Fields {
			if v.Object == nil && v.List == nil && v.Value.DType == tensor.Bytes && v.Output != "masks" {
				texts, _ := tensor.Strings(v.Value)
				list = append(list, strings.Join(texts, " "))
			}
		}
		list = append(list, said(f.Object)...)
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" || len(s) > 40 })
}

// drawTree draws what the stages of a pipeline found in the picture file that it got.
func drawTree(path string, m model, asked item, r result) error {
	rows, err := trees(m, r)
	if err != nil {
		return err
	}
	found, err := drawn(rows[0])
	if err != nil {
		return &failure{"protocol", err.Error(), "the log of the model's container may say more", exitRefused}
	}
	for i, s := range m.inputs {
		if !holdsFile(asked.inputs[i], s) {
			continue
		}
		if err := drawFile(path, asked.inputs[i].Data, found); err != nil {
			return unfit("", "--draw: %v", err)
		}
		return nil
	}
	return unfit("", "--draw: %s is no picture file", asked.name)
}
