package main

import (
	"context"
	"fmt"

	"github.com/shivad/shivad/bench/internal/figure"
)

// draw draws the ages over time, and the cameras' shares of the executions.
func draw(ctx context.Context, file string, all []serving) error {
	ages := figure.Panel{Title: "age of answers, four cameras on a model of 100 ms", X: figure.Axis{Label: "seconds", Min: figure.At(0), Max: figure.At(peerTime.Seconds())},
		Y: figure.Axis{Label: "ms", Min: figure.At(2), Max: figure.At(20000), Log: true}, Legend: &figure.Legend{}}
	parts := figure.Panel{Title: "share of the executions", Y: figure.Axis{Label: "%", Min: figure.At(0)}}
	for c := range cameras {
		parts.X.Names = append(parts.X.Names, fmt.Sprintf("camera %d", c+1))
	}
	for i, s := range all {
		line := figure.Series{Name: s.name, Width: 1}
		if i == 0 {
			line.Width = 2
		}
		some := s.film.executed(0, peerTime)
		counts := make([]float64, cameras)
		for _, a := range some {
			line.X, line.Y = append(line.X, a.At.Seconds()), append(line.Y, ms(a.Age))
			counts[a.Stream] += 100 / float64(len(some))
		}
		ages.Series = append(ages.Series, line)
		parts.Series = append(parts.Series, figure.Series{Bars: true, Y: counts})
	}
	f := figure.Figure{Columns: 2, Width: 11, Height: 7.5, Panels: []figure.Panel{ages, parts}}
	return f.Draw(ctx, file)
}
