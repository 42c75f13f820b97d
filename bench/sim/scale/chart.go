package main

import (
	"context"

	"github.com/shivad/shivad/bench/internal/figure"
)

// draw draws the results: the share of the oracle's frames over the number of servers, and over
// time for fleets with an event.
func draw(ctx context.Context, file string, acts []act, results []*Result, steady int) error {
	f := figure.Figure{Columns: 2, Width: 11, Height: 6.5}
	if len(results) == 1 {
		f.Columns = 1
	}
	if sizes := results[steady:]; len(sizes) > 2 {
		share := figure.Panel{Title: "frames in time, of the oracle's", X: figure.Axis{Label: "servers", Log: true}, Y: figure.Axis{Min: figure.At(0.8), Max: figure.At(1)}, Legend: &figure.Legend{Up: 0.5}}
		messages := figure.Panel{Title: "messages between servers and containers", X: share.X, Y: figure.Axis{Label: "a frame", Min: figure.At(0)}}
		below, above, each := figure.Series{Name: "load 0.8"}, figure.Series{Name: "load 1.2"}, figure.Series{}
		for i := 0; i+1 < len(sizes); i += 2 {
			n := float64(sizes[i].Fleet.Servers)
			add(&below, n, sizes[i].Share())
			add(&above, n, sizes[i+1].Share())
			all := 0
			for _, m := range sizes[i].Messages {
				all += m
			}
			add(&each, n, float64(all)/float64(sizes[i].Offered))
		}
		share.Series, messages.Series = []figure.Series{below, above}, []figure.Series{each}
		f.Panels = append(f.Panels, share, messages)
	}
	for i, r := range results[:steady] {
		p := figure.Panel{Title: acts[i].name, X: figure.Axis{Label: "seconds"}, Y: figure.Axis{Label: "share of the frames", Min: figure.At(0.4), Max: figure.At(1)}, Legend: &figure.Legend{Up: 0.5}}
		best, good := figure.Series{Name: "oracle", Color: "#000000", Dashes: []float64{3, 2}}, figure.Series{Name: "in time", Width: 2}
		for k, b := range r.Bins {
			at := float64(k) * bin.Seconds()
			add(&best, at, float64(b.Best)/float64(max(1, b.Offered)))
			add(&good, at, float64(b.Good)/float64(max(1, b.Offered)))
		}
		p.Series = []figure.Series{best, good}
		f.Panels = append(f.Panels, p)
	}
	return f.Draw(ctx, file)
}

func add(s *figure.Series, x, y float64) { s.X, s.Y = append(s.X, x), append(s.Y, y) }
