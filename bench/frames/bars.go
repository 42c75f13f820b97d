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
func (r results) bar(what string, of func(turn) float64, a, b cell, factor float64, bound ratio.Bound, limit float64) ratio.Ratio {
	bar := ratio.Ratio{What: what, Bound: bound, Limit: limit}
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
	least, most := ratio.AtLeast, ratio.AtMost
	bars := []ratio.Ratio{
		r.bar("go / echo: rate, "+video.name, rate, many(inGo, shivaTCP, video), many(echo, shivaTCP, video), 1, least, 0.8),
		r.bar("go / door: CPU, "+video.name, cpu, many(inGo, shivaTCP, video), many(door, shivaTCP, video), 1, most, 1.4),
		r.bar("python / echo: rate, "+video.name, rate, many(inPython, shivaTCP, video), many(echo, shivaTCP, video), 1, least, 0.75),
		r.bar("python / door: CPU, "+video.name, cpu, many(inPython, shivaTCP, video), many(door, shivaTCP, video), 1, most, 1.6),
		r.bar("go: CPU of 24 MB / of 6 MB", cpu, many(inGo, shivaTCP, wide), many(inGo, shivaTCP, video), 1, most, 4.3),
		r.bar("python: CPU of 24 MB / of 6 MB", cpu, many(inPython, shivaTCP, wide), many(inPython, shivaTCP, video), 1, most, 4.3),
		r.bar("python: p50 of one at a time, shared memory / TCP, "+video.name, p50, alone(inPython, shivaShared, video), alone(inPython, shivaTCP, video), 1, most, 0.35),
		r.bar("python / echo: p50 of one at a time, to two round trips, "+small.name, p50, alone(inPython, shivaTCP, small), alone(echo, shivaTCP, small), 2, most, 3),
		r.bar("python / echo: rate, "+small.name+", 16 connections x 16", rate, many(inPython, shivaTCP, small), many(echo, shivaTCP, small), 1, least, 0.45),
	}
	if !peers {
		return bars
	}
	bars = append(bars, r.bar("python / eyecan-shiva: rate, "+floats.name, rate, many(inPython, shivaTCP, floats), many(reference, shivaTCP, floats), 1, least, 1.4))
	for _, s := range []*size{video, picture} {
		for _, peer := range []struct {
			*kind
			limit float64
		}{{pytriton, 3}, {mlserver, 10}} {
			// Frames per second of processor time are the inverse of processor time per frame.
			bars = append(bars, r.bar(fmt.Sprintf("python / %s: rate per CPU, gRPC, %s", peer.label, s.name),
				func(t turn) float64 { return 1 / t.cpu.Seconds() }, many(inPython, grpcRaw, s), many(peer.kind, grpcRaw, s), 1, least, peer.limit))
		}
	}
	return bars
}
