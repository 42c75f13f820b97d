package main

import (
	"context"
	"fmt"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// largeLoads are frames as cameras make them (uint8) and as models take them (float32, byte-swapped
// on the way in and out), and frames of four times the bytes.
var largeLoads = []*workload{
	workloads[image],
	{name: "3840x2160x3 uint8", model: "image4", dtype: tensor.Uint8, shape: tensor.Shape{2160, 3840, 3}, conns: 4, inFlight: 2},
	{name: "6.2 MB float32", model: "floats", dtype: tensor.Float32, shape: tensor.Shape{3, 720, 720}, conns: 4, inFlight: 2},
	{name: "24.9 MB float32", model: "floats4", dtype: tensor.Float32, shape: tensor.Shape{3, 1440, 1440}, conns: 4, inFlight: 2},
}

// large offers large tensors to the door, whose model answers with its input's memory, and to the
// bare echo.
func large(ctx context.Context, o options, bin string) ([]ratio.Ratio, [][]string, error) {
	for _, w := range largeLoads[1:] {
		var err error
		if w.frames, err = load.Frames(w.conns, w.model, w.dtype, w.shape); err != nil {
			return nil, nil, err
		}
	}
	o.duration *= 2 // a busy machine answers only ten such frames a second
	names := []string{"echo", "door"}
	all, err := systems(ctx, o, bin, names, largeLoads)
	if err != nil {
		return nil, nil, err
	}
	return all.largeRatios(), all.table(names, largeLoads), nil
}

// largeRatios compares the cost of a frame at the door with its cost at the bare echo, and the cost
// of a frame of four times the bytes with that of the smaller one.
func (all samples) largeRatios() (rs []ratio.Ratio) {
	door := all["door"]
	compare := func(r ratio.Ratio, of, to []sample) {
		for i := range of {
			r.Rounds = append(r.Rounds, float64(of[i].cpuPerRequest)/float64(to[i].cpuPerRequest))
		}
		rs = append(rs, r)
	}
	for i, w := range largeLoads {
		compare(ratio.Ratio{What: "door / echo: CPU, " + w.name}, door[i], all["echo"][i])
	}
	for i := 0; i < len(largeLoads); i += 2 {
		what := fmt.Sprintf("door: CPU, %s / %s", largeLoads[i+1].name, largeLoads[i].name)
		compare(ratio.Ratio{What: what, Bound: ratio.AtMost, Limit: 4.3}, door[i+1], door[i])
	}
	return rs
}
