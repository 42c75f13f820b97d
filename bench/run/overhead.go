package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// ofSaturation is the offered load as a share of the rate of a closed loop. Requests that arrive
// one by one cost three times as much as those of a closed loop, which arrive in bursts: on two
// cores, which the load generator shares with server and container, this share keeps both cores
// busy.
const ofSaturation = 0.3

// overheadLoads are 64 floats of many clients, and a picture of one at a time.
var overheadLoads = []*workload{
	{name: "64 floats at 30 % of the rate", model: "numbers", dtype: tensor.Float32, shape: tensor.Shape{64}, conns: 16, inFlight: 16},
	{name: "3x224x224 float32, one at a time", model: "picture", dtype: tensor.Float32, shape: tensor.Shape{3, 224, 224}, conns: 1, inFlight: 1},
}

// overhead measures the latency that server and container add to a request when the model takes no
// time: that of an open loop at 30 % of their rate, and of pictures one at a time, against two
// round trips to the bare echo at the same rate. One round trip stands for the way to the server
// and back, the other for the way to the container.
func overhead(ctx context.Context, o options, bin string) ([]ratio.Ratio, [][]string, error) {
	names := []string{"echo", "go"}
	if err := process.Build(ctx, bin, programs(names)...); err != nil {
		return nil, nil, err
	}
	for _, w := range overheadLoads {
		var err error
		if w.frames, err = load.Frames(w.conns, w.model, w.dtype, w.shape); err != nil {
			return nil, nil, err
		}
	}
	var running []*system
	defer func() {
		for _, s := range running {
			s.Stop()
		}
	}()
	for _, name := range names {
		s, err := startSystem(ctx, o, name, bin, overheadLoads)
		if err != nil {
			return nil, nil, err
		}
		running = append(running, s)
	}
	most, err := turn(ctx, o, running[1], overheadLoads[0], 0, false)
	if err != nil {
		return nil, nil, err
	}
	all := samples{"echo": make([][]sample, len(overheadLoads)), "go": make([][]sample, len(overheadLoads))}
	for range o.rounds {
		for i, w := range overheadLoads {
			for _, s := range running {
				rate := 0.0 // a closed loop
				if i == 0 {
					rate = ofSaturation * most.rate
				}
				got, err := turn(ctx, o, s, w, rate, false)
				if err != nil {
					return nil, nil, fmt.Errorf("run: overhead: %s, %s: %w", s.name, w.name, err)
				}
				all[s.name][i] = append(all[s.name][i], got)
			}
		}
		slices.Reverse(running)
	}
	return all.overheadRatios(), all.table(names, overheadLoads), nil
}

// overheadRatios compares each latency with that of two round trips to the bare echo.
func (all samples) overheadRatios() (rs []ratio.Ratio) {
	for i, w := range overheadLoads {
		p50 := ratio.Ratio{What: "go / two round trips of echo: p50, " + w.name, Bound: ratio.AtMost, Limit: 3}
		p99 := ratio.Ratio{What: "go / two round trips of echo: p99, " + w.name, Bound: ratio.AtMost, Limit: 5}
		for round, s := range all["go"][i] {
			bare := all["echo"][i][round]
			p50.Rounds = append(p50.Rounds, float64(s.p50)/float64(2*bare.p50))
			p99.Rounds = append(p99.Rounds, float64(s.p99)/float64(2*bare.p99))
		}
		rs = append(rs, p50, p99)
	}
	return rs
}
