package main

import (
	"context"

	"github.com/shivad/shivad/bench/internal/figure"
	"github.com/shivad/shivad/scheduler/sim"
)

// drawGoodput draws the cells with Poisson arrivals and one SLO into a file: for each profile the
// goodput of all strategies and of the oracle over the load, both as shares of the capacity.
func drawGoodput(ctx context.Context, file string, all []*sim.Outcome) error {
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
	f := figure.Figure{Columns: 2, Width: 11, Height: 7}
	for _, name := range names {
		f.Panels = append(f.Panels, panel(name, byName[name]))
	}
	f.Panels[0].Legend = &figure.Legend{Up: 0.9}
	return f.Draw(ctx, file)
}

func panel(name string, cells []*sim.Outcome) figure.Panel {
	p := figure.Panel{
		Title: name,
		X:     figure.Axis{Label: "offered / capacity", Min: figure.At(0.5), Max: figure.At(2.5)},
		Y:     figure.Axis{Label: "in time / capacity", Min: figure.At(0), Max: figure.At(1.25)},
	}
	add := func(s figure.Series, of func(o *sim.Outcome) *sim.Result) {
		for _, o := range cells {
			s.X, s.Y = append(s.X, o.Load), append(s.Y, of(o).OfCapacity())
		}
		p.Series = append(p.Series, s)
	}
	add(figure.Series{Name: "oracle", Color: "#000000", Dashes: []float64{3, 2}}, func(o *sim.Outcome) *sim.Result {
		return o.Oracle
	})
	for i, s := range sim.Strategies() {
		width := 1.0
		if i == 0 {
			width = 2
		}
		add(figure.Series{Name: s.Name, Width: width}, func(o *sim.Outcome) *sim.Result { return o.Strategies[i] })
	}
	return p
}
