package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/shivad/shivad/shiva/tensor"
)

// printResults prints a table with a line for each row and a column for each output, then the
// failures. The objects of a detector have lines of their own, and pipelines have trees.
func (c *cli) printResults(m model, results []result, o *inferOptions) error {
	if m.pipeline != nil {
		return c.printTrees(m, results, o)
	}
	if detects(m) {
		return c.printObjects(m, results, o)
	}
	g := newGrid("", "") // outputs may differ from row to row: then another table begins
	for _, r := range results {
		if r.err != nil {
			continue
		}
		columns := []string{cmp.Or(o.subject, "FILE")}
		for _, t := range r.outputs {
			columns = append(columns, title(t, r.rows, o.top))
		}
		if o.timing {
			columns = append(columns, "TIME")
		}
		if !slices.Equal(columns, g.head) {
			if err := g.write(c.stdout, c.width()); err != nil {
				return err
			}
			g = &grid{head: columns}
		}
		for i := range r.rows {
			cells := []string{r.name}
			if r.rows > 1 {
				cells[0] += fmt.Sprintf("[%d]", i)
			}
			for _, t := range r.outputs {
				cells = append(cells, cell(t, i, r.rows, o.top, m.labelsOf(t.Name)))
			}
			if o.timing {
				cells = append(cells, timing(r))
			}
			g.rows = append(g.rows, cells)
		}
	}
	if err := g.write(c.stdout, c.width()); err != nil {
		return err
	}
	for _, r := range results {
		if r.err == nil && isDefault(r.metadata) {
			fmt.Fprintf(c.stderr, "%s: a default output, no prediction: %s\n", r.name, defaultReason(r.metadata))
		}
	}
	return c.reportFailed(results)
}

// reportFailed prints the failures, equal reasons once, and returns a failure without a message.
func (c *cli) reportFailed(results []result) error {
	var first *failure
	var order []string
	files := map[string][]string{}
	hints := map[string]string{}
	for _, r := range results {
		if r.err == nil {
			continue
		}
		first = cmp.Or(first, r.err)
		text := r.err.Message
		if files[text] == nil {
			order = append(order, text)
		}
		files[text] = append(files[text], r.name)
		hints[text] = r.err.Hint
	}
	if first == nil {
		return nil
	}
	for _, text := range order {
		names := files[text]
		who := names[0]
		if len(names) > 1 {
			who = fmt.Sprintf("%s and %d more", names[0], len(names)-1)
		}
		fmt.Fprintf(c.stderr, "shivactl: %s: %s\n", who, text)
		if hints[text] != "" {
			fmt.Fprintln(c.stderr, "  ->", hints[text])
		}
	}
	return &failure{code: first.code}
}

// scores reports whether each row of a tensor is a list of floats so long that only the highest
// should be shown.
func scores(t tensor.Tensor, rows int) (n int, ok bool) {
	if len(t.Shape) != 2 || t.Shape[0] != rows || t.Shape[1] <= 4 {
		return 0, false
	}
	return t.Shape[1], t.DType.IsFloat()
}

func title(t tensor.Tensor, rows, top int) string {
	if n, ok := scores(t, rows); ok {
		return fmt.Sprintf("%s (top %d of %d)", t.Name, min(top, n), n)
	}
	return t.Name
}

// cell formats one row of an output, whose classes may have names.
func cell(t tensor.Tensor, i, rows, top int, labels []string) string {
	one, err := t, error(nil)
	if len(t.Shape) > 0 && t.Shape[0] == rows {
		if one, err = t.RowSlice(i, i+1); err != nil {
			return err.Error()
		}
		one.Shape = one.Shape[1:]
	}
	var show func(int) string
	if t.DType == tensor.Bytes {
		texts, err := tensor.Strings(one)
		if err != nil {
			return err.Error()
		}
		show = func(i int) string { return abbreviate(texts[i]) }
	} else {
		show = func(i int) string { return number(element(one, i)) }
	}
	n, _ := one.Shape.Elements()
	if _, ok := scores(t, rows); ok {
		return highest(one, n, top, labels)
	}
	if len(one.Shape) == 0 || n == 1 {
		return show(0)
	}
	parts := make([]string, 0, 8)
	for i := range n {
		if n > 8 && i == 6 {
			parts = append(parts, "…", show(n-1))
			break
		}
		parts = append(parts, show(i))
	}
	text := "[" + strings.Join(parts, ", ") + "]"
	if n > 8 {
		text += fmt.Sprintf(" %s %v", t.DType.V2(), one.Shape)
	}
	return text
}

// highest lists the largest elements with their classes: "7: 0.982  1: 0.011".
func highest(t tensor.Tensor, n, top int, labels []string) string {
	order := make([]int, n)
	values := make([]float64, n)
	for i := range order {
		order[i], values[i] = i, element(t, i).(float64)
	}
	// NaN sorts last.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
	var parts []string
	for _, i := range order[:min(top, n)] {
		class := strconv.Itoa(i)
		if i < len(labels) && labels[i] != "" {
			class = labels[i]
		}
		parts = append(parts, class+": "+number(values[i]))
	}
	return strings.Join(parts, "  ")
}

// number formats an element in few characters.
func number(v any) string {
	switch v := v.(type) {
	case float64:
		return strconv.FormatFloat(v, 'g', 4, 64)
	case complex128:
		return strconv.FormatComplex(v, 'g', 4, 128)
	}
	return fmt.Sprint(v)
}

// abbreviate quotes a text, and cuts a long one.
func abbreviate(s string) string {
	const most = 60
	if utf8.RuneCountInString(s) > most {
		s = string([]rune(s)[:most]) + "…"
	}
	return strconv.Quote(s)
}

// timing formats where the time of a request went, as far as the server reports it.
func timing(r result) string {
	total := fmt.Sprintf("%.2f ms", float64(r.took.Microseconds())/1000)
	var read struct {
		Timing *struct {
			Queue     float64 `json:"queue_us"`
			Execute   float64 `json:"execute_us"`
			Total     float64 `json:"total_us"`
			BatchRows int     `json:"batch_rows"`
		} `json:"timing"`
	}
	if json.Unmarshal(r.metadata, &read) != nil || read.Timing == nil {
		return total
	}
	t := read.Timing
	return fmt.Sprintf("%s (server %.2f: waited %.2f, executed %.2f in a batch of %d)", total, t.Total/1000,
		t.Queue/1000, t.Execute/1000, t.BatchRows)
}

func isDefault(metadata json.RawMessage) bool {
	var read struct {
		Default bool `json:"default"`
	}
	return json.Unmarshal(metadata, &read) == nil && read.Default
}

func defaultReason(metadata json.RawMessage) string {
	var read struct {
		Why string `json:"default_explanation"`
	}
	_ = json.Unmarshal(metadata, &read) // then without a reason
	return read.Why
}

// The JSON output of infer; the help documents it.
type (
	jsonResults struct {
		Route   string       `json:"route"`
		Results []jsonResult `json:"results"`
	}
	jsonResult struct {
		File     string          `json:"file"`
		Rows     int             `json:"rows,omitempty"`
		MS       float64         `json:"ms,omitempty"`
		Outputs  []jsonOutput    `json:"outputs,omitempty"`
		Metadata json.RawMessage `json:"metadata,omitempty"`
		Error    *failure        `json:"error,omitempty"`
	}
	jsonOutput struct {
		Name     string       `json:"name"`
		Datatype string       `json:"datatype"`
		Shape    tensor.Shape `json:"shape"`
		Data     []any        `json:"data"`
	}
)

func (c *cli) printResultsJSON(m model, results []result) error {
	out := jsonResults{Route: m.route}
	var failed *failure
	for _, r := range results {
		if r.err != nil {
			failed = cmp.Or(failed, &failure{code: r.err.code})
			out.Results = append(out.Results, jsonResult{File: r.name, Error: r.err})
			continue
		}
		j := jsonResult{File: r.name, Rows: r.rows, MS: float64(r.took.Microseconds()) / 1000, Metadata: r.metadata}
		for _, t := range r.outputs {
			data, err := jsonData(t)
			if err != nil {
				return err
			}
			j.Outputs = append(j.Outputs, jsonOutput{t.Name, t.DType.V2(), t.Shape, data})
		}
		out.Results = append(out.Results, j)
	}
	if err := c.printJSON(out); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	return nil
}

// jsonData returns all elements of a tensor as values for JSON.
func jsonData(t tensor.Tensor) ([]any, error) {
	if t.DType == tensor.Bytes {
		texts, err := tensor.Strings(t)
		if err != nil {
			return nil, err
		}
		data := make([]any, len(texts))
		for i, s := range texts {
			data[i] = s
		}
		return data, nil
	}
	n, _ := t.Shape.Elements()
	data := make([]any, n)
	for i := range data {
		switch v := element(t, i).(type) {
		case float64:
			data[i] = jsonFloat(v)
			if f, ok := data[i].(float64); ok && t.DType.Size() <= 4 {
				data[i] = float32(f) // otherwise written with the digits of a float64
			}
		case complex128:
			data[i] = []any{jsonFloat(real(v)), jsonFloat(imag(v))}
		default:
			data[i] = v
		}
	}
	return data, nil
}

func jsonFloat(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return f
}
