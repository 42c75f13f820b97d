// Package figure describes charts, which the program bench/chart draws. The program is a module of
// its own, so that its dependencies (fonts, PDF, LaTeX) are not the server's.
package figure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
)

// A Figure is one or more panels of the same size, in rows. It is the JSON that bench/chart reads.
type Figure struct {
	Columns int     `json:"columns"` // panels in a row; 0: 1
	Width   float64 `json:"width"`   // of a panel, in centimetres
	Height  float64 `json:"height"`
	Panels  []Panel `json:"panels"`
}

// A Panel is a chart with its axes.
type Panel struct {
	Title  string   `json:"title"`
	X      Axis     `json:"x"`
	Y      Axis     `json:"y"`
	Series []Series `json:"series"`
	Legend *Legend  `json:"legend"` // nil: none
}

// An Axis spans its series, unless it has bounds of its own.
type Axis struct {
	Label string   `json:"label"`
	Min   *float64 `json:"min"` // a logarithmic axis with bars on it needs one, as bars begin there
	Max   *float64 `json:"max"`
	Log   bool     `json:"log"`
	Names []string `json:"names"` // at 0, 1, 2 and so on, instead of numbers; only on the X axis
}

// A Legend is in the lower right corner, or higher by Up.
type Legend struct {
	Up float64 `json:"up"` // in centimetres
}

// A Series is a line through its points, or a bar for each of them.
type Series struct {
	Name string `json:"name"` // in the legend; "": left out
	// Bars next to those of other series, at 0, 1, 2 and so on.
	Bars bool      `json:"bars"`
	X    []float64 `json:"x"` // of a line: as many as Y
	Y    []float64 `json:"y"`
	// Such as "#0072b2"; "": the next that the colour-blind can tell from the others.
	Color  string    `json:"color"`
	Width  float64   `json:"width"`  // of a line, in points; 0: 1
	Dashes []float64 `json:"dashes"` // of a line, in points, strokes and gaps in turn; none: solid
}

// At returns a bound for an axis.
func At(bound float64) *float64 { return &bound }

// Draw draws the figure into a file; the extension of the name selects the kind: .svg or .png. The
// working directory must be the top of the source tree.
func (f *Figure) Draw(ctx context.Context, file string) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	description, err := json.Marshal(f)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", "-C", "bench/chart", ".", "-o", file)
	cmd.Stdin = bytes.NewReader(description)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("figure: bench/chart: %w\n%s", err, text)
	}
	return nil
}
