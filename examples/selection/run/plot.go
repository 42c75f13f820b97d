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

	"github.com/shivad/shivad/examples/selection"
)

// Size of the chart.
const (
	width  = 20 * vg.Centimeter
	height = 8 * vg.Centimeter
)

// window is the number of rounds over which the accuracy is averaged.
const window = 40

// inks are the colours of the models, in their order, distinguishable for the colour-blind (Okabe
// and Ito).
var inks = [models]color.Color{
	color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
}

// drawSVG writes a chart of the rounds to a file: the weight of each model, and the application's
// accuracy over the last window rounds.
func drawSVG(file string, rounds []round) error {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "feedbacks; half-way version 2 of sharp is rolled out", "weight"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, float64(len(rounds)), 0, 1.02
	p.Add(plotter.NewGrid())
	line := func(name string, points plotter.XYs, style draw.LineStyle) error {
		l, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		l.LineStyle = style
		p.Add(l)
		if name != "" {
			p.Legend.Add(name, l)
		}
		return nil
	}
	for i, name := range selection.Models {
		points := make(plotter.XYs, len(rounds))
		for n, r := range rounds {
			points[n] = plotter.XY{X: float64(n + 1), Y: r.shares[i]}
		}
		if err := line(name, points, draw.LineStyle{Color: inks[i], Width: vg.Points(2)}); err != nil {
			return err
		}
	}
	accuracy := make(plotter.XYs, len(rounds)-window+1)
	for n := range accuracy {
		accuracy[n] = plotter.XY{X: float64(n + window), Y: float64(applicationRight(rounds[n:n+window])) / window}
	}
	dashed := []vg.Length{vg.Points(3), vg.Points(2)}
	if err := line(fmt.Sprintf("right of the last %d", window), accuracy,
		draw.LineStyle{Color: color.Black, Width: vg.Points(1), Dashes: dashed}); err != nil {
		return err
	}
	half := float64(len(rounds) / 2)
	if err := line("", plotter.XYs{{X: half, Y: 0}, {X: half, Y: 1}},
		draw.LineStyle{Color: color.Gray{0x80}, Width: vg.Points(1)}); err != nil {
		return err
	}
	p.Legend.Padding = vg.Millimeter / 2
	p.Legend.YOffs = height / 3

	canvas := vgsvg.New(width, height)
	canvas.SetColor(color.White) // for pages with a dark background
	canvas.Fill(vg.Rectangle{Max: vg.Point{X: width, Y: height}}.Path())
	p.Draw(draw.Crop(draw.New(canvas), 2*vg.Millimeter, -2*vg.Millimeter, 2*vg.Millimeter, -2*vg.Millimeter))
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
