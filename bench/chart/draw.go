package main

import (
	"cmp"
	"errors"
	"fmt"
	"image/color"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgimg"
	_ "gonum.org/v1/plot/vg/vgsvg"

	"github.com/shivad/shivad/bench/internal/figure"
)

// inks are the colours of series without one of their own, distinguishable for the colour-blind
// (Okabe and Ito).
var inks = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff},
	color.RGBA{0xf0, 0xe4, 0x42, 0xff},
}

// between is the width of all bars at one place, as a share of the distance to the next place.
const between = 0.75

// drawFigure draws all panels on a canvas of the format that a file's extension names.
func drawFigure(f *figure.Figure, extension string) (vg.CanvasWriterTo, error) {
	if extension != ".svg" && extension != ".png" {
		return nil, fmt.Errorf("a figure is drawn into a file named .svg or .png, not %q", extension)
	}
	if len(f.Panels) == 0 || f.Width <= 0 || f.Height <= 0 || f.Columns < 0 {
		return nil, fmt.Errorf("%d panels of %g x %g cm in %d columns: expected at least one, with a size",
			len(f.Panels), f.Width, f.Height, f.Columns)
	}
	columns := max(f.Columns, 1)
	rows := (len(f.Panels) + columns - 1) / columns
	width, height := vg.Length(columns)*cm(f.Width), vg.Length(rows)*cm(f.Height)
	canvas, err := draw.NewFormattedCanvas(width, height, extension[1:])
	if err != nil {
		return nil, err
	}
	canvas.SetColor(color.White) // for pages with a dark background
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: width, Y: height}}.Path())
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: cm(0.4), PadY: cm(0.4), PadTop: cm(0.2), PadBottom: cm(0.2),
		PadLeft: cm(0.2), PadRight: cm(0.2)}
	for i := range f.Panels {
		p, err := plotPanel(&f.Panels[i], cm(f.Width))
		if err != nil {
			return nil, fmt.Errorf("panel %d, %q: %w", i+1, f.Panels[i].Title, err)
		}
		p.Draw(tiles.At(draw.New(canvas), i%columns, i/columns))
	}
	return canvas, nil
}

func cm(n float64) vg.Length { return vg.Length(n) * vg.Centimeter }

// plotPanel lays out a panel of that width.
func plotPanel(panel *figure.Panel, width vg.Length) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = panel.Title
	p.Add(plotter.NewGrid())
	group := newBarGroup(panel, width)
	next := 0 // of inks
	for i := range panel.Series {
		s := &panel.Series[i]
		ink := inks[next%len(inks)]
		if s.Color == "" {
			next++
		} else if own, err := parseColor(s.Color); err != nil {
			return nil, fmt.Errorf("series %q: %w", s.Name, err)
		} else {
			ink = own
		}
		var drawn interface {
			plot.Plotter
			plot.Thumbnailer
		}
		var err error
		if err = check(panel, s); err == nil && s.Bars {
			drawn, err = group.bars(s, ink)
		} else if err == nil {
			drawn, err = line(s, ink)
		}
		if err != nil {
			return nil, fmt.Errorf("series %q: %w", s.Name, err)
		}
		p.Add(drawn)
		if panel.Legend != nil && s.Name != "" {
			p.Legend.Add(s.Name, drawn)
		}
	}
	if n := len(panel.X.Names); n > 0 {
		p.NominalX(panel.X.Names...)
		p.X.Min, p.X.Max = -0.5, float64(n)-0.5
	}
	for _, side := range []struct {
		to *plot.Axis
		of figure.Axis
	}{{&p.X, panel.X}, {&p.Y, panel.Y}} {
		if err := scale(side.to, side.of); err != nil {
			return nil, fmt.Errorf("axis %q: %w", side.of.Label, err)
		}
	}
	p.Legend.Padding = vg.Millimeter / 2
	if panel.Legend != nil {
		p.Legend.YOffs = cm(panel.Legend.Up)
	}
	return p, nil
}

// check refuses series that cannot be drawn: without values, with unequal numbers of x and y, or
// with values that a logarithmic axis does not show.
func check(panel *figure.Panel, s *figure.Series) error {
	if len(s.Y) == 0 {
		return errors.New("no values")
	}
	if !s.Bars && len(s.X) != len(s.Y) {
		return fmt.Errorf("%d x for %d y", len(s.X), len(s.Y))
	}
	if s.Bars && panel.Y.Log && panel.Y.Min == nil {
		return errors.New("bars on a logarithmic axis need its min, where they begin")
	}
	positive := func(v float64) bool { return v > 0 }
	if panel.X.Log && !every(s.X, positive) || panel.Y.Log && !every(s.Y, positive) {
		return errors.New("a logarithmic axis shows only what is above 0")
	}
	return nil
}

func every(values []float64, is func(v float64) bool) bool {
	return !slices.ContainsFunc(values, func(v float64) bool { return !is(v) })
}

func scale(to *plot.Axis, of figure.Axis) error {
	to.Label.Text = of.Label
	if of.Min != nil {
		to.Min = *of.Min
	}
	if of.Max != nil {
		to.Max = *of.Max
	}
	if !of.Log {
		return nil
	}
	if to.Min <= 0 || to.Max <= to.Min {
		return fmt.Errorf("from %g to %g cannot be logarithmic", to.Min, to.Max)
	}
	to.Scale, to.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	return nil
}

func line(s *figure.Series, ink color.Color) (*plotter.Line, error) {
	points := make(plotter.XYs, len(s.Y))
	for i := range points {
		points[i] = plotter.XY{X: s.X[i], Y: s.Y[i]}
	}
	l, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	l.Color, l.Width = ink, vg.Points(cmp.Or(s.Width, 1))
	for _, d := range s.Dashes {
		l.Dashes = append(l.Dashes, vg.Points(d))
	}
	return l, nil
}

// A barGroup places the bars of several series side by side.
type barGroup struct {
	n, seen int
	width   vg.Length // of a bar
	floor   *float64  // where bars begin, if not at 0
}

func newBarGroup(panel *figure.Panel, width vg.Length) *barGroup {
	g := &barGroup{}
	places := 1
	for _, s := range panel.Series {
		if s.Bars {
			g.n++
			places = max(places, len(s.Y))
		}
	}
	const axes = 2 * vg.Centimeter // about the width of the Y axis and the padding
	g.width = (width - axes) * between / vg.Length(places*max(g.n, 1))
	if panel.Y.Log {
		g.floor = panel.Y.Min
	}
	return g
}

func (g *barGroup) bars(s *figure.Series, ink color.Color) (*plotter.BarChart, error) {
	heights := plotter.Values(slices.Clone(s.Y))
	var base *plotter.BarChart
	if g.floor != nil {
		floor := make(plotter.Values, len(heights))
		for i := range heights {
			floor[i], heights[i] = *g.floor, max(heights[i]-*g.floor, 0)
		}
		var err error
		if base, err = plotter.NewBarChart(floor, g.width); err != nil {
			return nil, err
		}
	}
	b, err := plotter.NewBarChart(heights, g.width)
	if err != nil {
		return nil, err
	}
	if base != nil {
		b.StackOn(base)
	}
	b.Color, b.LineStyle.Width = ink, 0
	b.Offset = g.width * (vg.Length(g.seen) - vg.Length(g.n-1)/2)
	g.seen++
	return b, nil
}

func parseColor(text string) (color.Color, error) {
	c := color.RGBA{A: 0xff}
	if _, err := fmt.Sscanf(text, "#%02x%02x%02x", &c.R, &c.G, &c.B); err != nil || len(text) != len("#rrggbb") {
		return nil, fmt.Errorf("color %q: expected one such as #0072b2", text)
	}
	return c, nil
}
