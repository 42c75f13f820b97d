package main

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/shivad/shivad/scheduler/sim"
)

// Size of the chart of one profile.
const (
	panelWidth  = 11 * vg.Centimeter
	panelHeight = 7 * vg.Centimeter
)

// drawSVG writes a chart of the cells with Poisson arrivals and one SLO to a file: for each
// profile the goodput of all strategies and of the oracle over the load, both as shares of the
// capacity.
func drawSVG(file string, all []*sim.Outcome) error {
	var names []string
	byName := map[string][]*sim.Outcome{}
	for _, o := range all {
		if o.Bursts || o.Mixed {
			continue
		}
		if byName[o.Name] == nil {
			names = append(names, o.Name)
		}
		byName[o.Name] = append(byName[o.Name], o)
	}
	const columns = 2
	rows := (len(names) + columns - 1) / columns
	canvas := vgsvg.New(columns*panelWidth, vg.Length(rows)*panelHeight)
	canvas.SetColor(color.White) // for pages with a dark background
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: columns * panelWidth, Y: vg.Length(rows) * panelHeight}}.Path())
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Millimeter * 4, PadY: vg.Millimeter * 4, PadTop: vg.Millimeter * 2,
		PadBottom: vg.Millimeter * 2, PadLeft: vg.Millimeter * 2, PadRight: vg.Millimeter * 2}
	for i, name := range names {
		p, err := panel(name, byName[name], i == 0)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", name, err)
		}
		p.Draw(tiles.At(draw.New(canvas), i%columns, i/columns))
	}
	w, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(w); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

// inks are the colours of the strategies, in their order, distinguishable for the colour-blind
// (Okabe and Ito).
var inks = []color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0x00, 0x9e, 0x73, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff},
}

func panel(name string, cells []*sim.Outcome, legend bool) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = name
	p.X.Label.Text, p.Y.Label.Text = "offered / capacity", "in time / capacity"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0.5, 2.5, 0, 1.25
	p.Add(plotter.NewGrid())
	line := func(name string, width vg.Length, ink color.Color, dashes []vg.Length, of func(o *sim.Outcome) *sim.Result) error {
		points := make(plotter.XYs, len(cells))
		for i, o := range cells {
			points[i] = plotter.XY{X: o.Load, Y: of(o).OfCapacity()}
		}
		l, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		l.Width, l.Color, l.Dashes = width, ink, dashes
		p.Add(l)
		if legend {
			p.Legend.Add(name, l)
		}
		return nil
	}
	if err := line("oracle", vg.Points(1), color.Black, []vg.Length{vg.Points(3), vg.Points(2)}, func(o *sim.Outcome) *sim.Result { return o.Oracle }); err != nil {
		return nil, err
	}
	for i, s := range sim.Strategies() {
		width := vg.Points(1)
		if i == 0 {
			width = vg.Points(2)
		}
		if err := line(s.Name, width, inks[i], nil, func(o *sim.Outcome) *sim.Result { return o.Strategies[i] }); err != nil {
			return nil, err
		}
	}
	p.Legend.Padding = vg.Millimeter / 2
	p.Legend.YOffs = vg.Millimeter * 9
	return p, nil
}
