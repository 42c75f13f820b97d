package main

import (
	"context"
	"math"

	"github.com/shivad/shivad/bench/internal/figure"
)

// draw draws rates and processor times of each way to each server, a row of panels for each size.
func (r results) draw(ctx context.Context, file string) error {
	f := figure.Figure{Width: 24, Height: 6.5}
	for _, s := range sizes {
		if !s.inTable {
			continue
		}
		f.Panels = append(f.Panels,
			r.panel(s, "frames/s", rate),
			r.panel(s, "server CPU, ms/frame", func(t turn) float64 { return t.cpu.Seconds() * 1e3 }))
	}
	f.Panels[0].Legend = &figure.Legend{Up: 3}
	return f.Draw(ctx, file)
}

// panel shows one figure of every way, with a bar for each kind of server.
func (r results) panel(s *size, label string, of func(turn) float64) figure.Panel {
	p := figure.Panel{Title: s.name, Y: figure.Axis{Label: label, Log: true}}
	for _, w := range ways {
		p.X.Names = append(p.X.Names, w.name)
	}
	least, largest := math.Inf(1), 0.0
	for _, k := range kinds {
		bars, some := figure.Series{Name: k.label, Bars: true}, false
		for _, w := range ways {
			m, _, ok := r.of(many(k, w, s))
			v := 0.0
			if ok {
				v, some = of(m), true
				least, largest = min(least, v), max(largest, v)
			}
			bars.Y = append(bars.Y, v)
		}
		if some && k != echo && k != door {
			p.Series = append(p.Series, bars)
		}
	}
	floor := math.Pow(10, math.Floor(math.Log10(least)))
	p.Y.Min, p.Y.Max = figure.At(floor), figure.At(math.Pow(10, math.Ceil(math.Log10(largest))))
	for _, bars := range p.Series {
		for i, v := range bars.Y {
			bars.Y[i] = max(v, floor) // otherwise a missing figure has no bar
		}
	}
	return p
}
