package main

import (
	"fmt"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// many and alone return the cells of a server, a way and a size.
func many(k *kind, w *way, s *size) cell  { return cell{k, w, s, false} }
func alone(k *kind, w *way, s *size) cell { return cell{k, w, s, true} }

// The figures of a turn that ratios compare.
func rate(t turn) float64 { return t.rate }
func p50(t turn) float64  { return float64(t.p50) }
func cpu(t turn) float64  { return float64(t.cpu) }

// bar compares a figure of cell a with that of cell b in the same round, the latter times a factor.
// What the ratio is, and its bound, are set already.
func (r results) bar(bar ratio.Ratio, of func(turn) float64, a, b cell, factor float64) ratio.Ratio {
	if r[a] == nil || r[b] == nil {
		return bar
	}
	for i := range min(len(r[a].turns), len(r[b].turns)) {
		bar.Rounds = append(bar.Rounds, of(r[a].turns[i])/(of(r[b].turns[i])*factor))
	}
	return bar
}

// bars are shivad's promises for large tensors.
func (r results) bars(peers bool) []ratio.Ratio {
	least := func(what string, limit float64) ratio.Ratio {
		return ratio.Ratio{What: what, Bound: ratio.AtLeast, Limit: limit}
	}
	most := func(what string, limit float64) ratio.Ratio {
		return ratio.Ratio{What: what, Bound: ratio.AtMost, Limit: limit}
	}
	bars := []ratio.Ratio{
		r.bar(least("go / echo: rate, "+video.name, 0.8), rate, many(inGo, shivaTCP, video),
			many(echo, shivaTCP, video), 1),
		r.bar(most("go / door: CPU, "+video.name, 1.4), cpu, many(inGo, shivaTCP, video), many(door, shivaTCP, video),
			1),
		r.bar(least("python / echo: rate, "+video.name, 0.75), rate, many(inPython, shivaTCP, video),
			many(echo, shivaTCP, video), 1),
		r.bar(most("python / door: CPU, "+video.name, 1.6), cpu, many(inPython, shivaTCP, video),
			many(door, shivaTCP, video), 1),
		r.bar(most("go: CPU of 24 MB / of 6 MB", 4.3), cpu, many(inGo, shivaTCP, wide), many(inGo, shivaTCP, video), 1),
		r.bar(most("python: CPU of 24 MB / of 6 MB", 4.3), cpu, many(inPython, shivaTCP, wide),
			many(inPython, shivaTCP, video), 1),
		r.bar(most("python: p50 of one at a time, shared memory / TCP, "+video.name, 0.35), p50,
			alone(inPython, shivaShared, video), alone(inPython, shivaTCP, video), 1),
		r.bar(most("python / echo: p50 of one at a time, to two round trips, "+small.name, 3), p50,
			alone(inPython, shivaTCP, small), alone(echo, shivaTCP, small), 2),
		r.bar(least("python / echo: rate, "+small.name+", 16 connections x 16", 0.45), rate,
			many(inPython, shivaTCP, small), many(echo, shivaTCP, small), 1),
	}
	if !peers {
		return bars
	}
	bars = append(bars,
		r.bar(least("python / eyecan-shiva: rate, "+floats.name, 1.4), rate, many(inPython, shivaTCP, floats),
			many(reference, shivaTCP, floats), 1))
	for _, s := range []*size{video, picture} {
		for _, peer := range []struct {
			*kind
			limit float64
		}{{pytriton, 3}, {mlserver, 10}} {
			// Frames per second of processor time are the inverse of processor time per frame.
			what := fmt.Sprintf("python / %s: rate per CPU, gRPC, %s", peer.label, s.name)
			perCPU := func(t turn) float64 { return 1 / t.cpu.Seconds() }
			bars = append(bars,
				r.bar(least(what, peer.limit), perCPU, many(inPython, grpcRaw, s), many(peer.kind, grpcRaw, s), 1))
		}
	}
	return bars
}
