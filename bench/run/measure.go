package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// sample is the result of one turn of one system.
type sample struct {
	rate, mbps     float64
	p50, p99, p999 time.Duration
	cpuPerRequest  time.Duration
	ownPerRequest  time.Duration // the same of this process, the client
}

// samples are the results of all turns: by system, then workload, then round.
type samples map[string][][]sample

// systems runs the loads on the systems, taking turns.
func systems(ctx context.Context, o options, bin string, names []string, loads []*workload) (samples, error) {
	if err := process.Build(ctx, bin, programs(names)...); err != nil {
		return nil, err
	}
	var running []*system
	defer func() {
		for _, s := range running {
			s.Stop()
		}
	}()
	all := samples{}
	for _, name := range names {
		s, err := startSystem(ctx, o, name, bin, loads)
		if err != nil {
			return nil, err
		}
		running = append(running, s)
		all[name] = make([][]sample, len(loads))
	}
	for round := range o.rounds {
		for i, w := range loads {
			for _, s := range running {
				got, err := turn(ctx, o, s, w, 0, round == 0)
				if err != nil {
					return nil, fmt.Errorf("run: %s, %s: %w", s.name, w.name, err)
				}
				all[s.name][i] = append(all[s.name][i], got)
			}
		}
		slices.Reverse(running)
	}
	return all, nil
}

// turn offers one workload to one system, as a closed loop or at a rate.
func turn(ctx context.Context, o options, s *system, w *workload, rate float64, first bool) (sample, error) {
	profiled := s.startProfile(ctx, o, first, fmt.Sprintf("%s-%s-%dx%d-%t", s.name, w.model, w.conns, w.inFlight, w.gather))
	before, err := s.CPU()
	if err != nil {
		return sample{}, err
	}
	own := ownCPU()
	r, err := s.offer(ctx, "Serve/system="+s.name+"/"+w.key(), load.Config{Frames: w.frames, Conns: w.conns, InFlight: w.inFlight, Rate: rate,
		Gather: w.gather, Poll: w.poll, Warmup: o.duration / 10, Duration: o.duration})
	if err := errors.Join(err, <-profiled); err != nil {
		return sample{}, err
	}
	after, err := s.CPU()
	if err != nil {
		return sample{}, err
	}
	own = ownCPU() - own
	return sample{
		rate: r.Rate(), mbps: float64(r.Bytes) / 1e6 / r.Elapsed.Seconds(),
		p50: r.Latency.Quantile(0.5), p99: r.Latency.Quantile(0.99), p999: r.Latency.Quantile(0.999),
		cpuPerRequest: time.Duration(float64(after-before) / float64(r.Taken)),
		ownPerRequest: time.Duration(float64(own) / float64(r.Taken)),
	}, nil
}

// startProfile takes a CPU profile of a turn that begins now, if profiles are requested, the system
// has them, and this is the first turn of its kind. The channel yields once, when the profile is
// complete.
func (s *system) startProfile(ctx context.Context, o options, first bool, name string) <-chan error {
	done := make(chan error, 1)
	if o.profile == "" || s.profile == "" || !first {
		done <- nil
		return done
	}
	go func() { // joined by the reader of the channel
		done <- fetchProfile(ctx, s.profile, filepath.Join(o.profile, name+".pprof"), int(max(o.duration.Seconds(), 1)))
	}()
	return done
}

// ratios returns the ratios of each system to the bare echo, round by round.
func (all samples) ratios(names []string) []ratio.Ratio {
	bar := all["echo"]
	var rs []ratio.Ratio
	add := func(r ratio.Ratio, what, name string, w int, value func(s, bar sample) float64) {
		r.What = fmt.Sprintf("%s / echo: %s", name, what)
		for i, s := range all[name][w] {
			r.Rounds = append(r.Rounds, value(s, bar[w][i]))
		}
		rs = append(rs, r)
	}
	rate := func(s, bar sample) float64 { return s.rate / bar.rate }
	trips := func(s, bar sample) float64 { return float64(s.p50) / float64(2*bar.p50) }
	for _, name := range names[1:] {
		var rates, images, trip ratio.Ratio // with the floors of bench/README.md
		switch name {
		case "door":
			rates, images = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.6}, ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.7}
		case "go":
			rates, images = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.2}, ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.35}
			trip = ratio.Ratio{Bound: ratio.AtMost, Limit: 3}
		case "python":
			rates, trip = ratio.Ratio{Bound: ratio.AtLeast, Limit: 0.45}, ratio.Ratio{Bound: ratio.AtMost, Limit: 3}
		}
		add(rates, "rate, "+workloads[deep].name, name, deep, rate)
		add(ratio.Ratio{}, "rate, "+workloads[gathered].name, name, gathered, rate)
		add(images, "rate, "+workloads[image].name, name, image, rate)
		add(trip, "p50 of one at a time, to two round trips", name, single, trips)
	}
	return rs
}

// table returns the median turn of every system under every load.
func (all samples) table(names []string, loads []*workload) (rows [][]string) {
	for i, w := range loads {
		for _, name := range names {
			of := func(value func(sample) float64) float64 {
				var v []float64
				for _, s := range all[name][i] {
					v = append(v, value(s))
				}
				return ratio.Median(v)
			}
			micros := func(value func(sample) time.Duration) string {
				return fmt.Sprintf("%.1f", of(func(s sample) float64 { return float64(value(s)) / 1e3 }))
			}
			rows = append(rows, []string{
				name + ", " + w.name,
				fmt.Sprintf("%.0f", of(func(s sample) float64 { return s.rate })),
				fmt.Sprintf("%.0f", of(func(s sample) float64 { return s.mbps })),
				micros(func(s sample) time.Duration { return s.p50 }),
				micros(func(s sample) time.Duration { return s.p99 }),
				micros(func(s sample) time.Duration { return s.p999 }),
				micros(func(s sample) time.Duration { return s.cpuPerRequest }),
			})
		}
	}
	return rows
}
