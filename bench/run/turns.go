package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// A sample is the result of one turn of one system.
type sample struct {
	rate, mbps     float64
	p50, p99, p999 time.Duration
	server, client time.Duration // processor time per request
	wire           float64       // bytes per request, both ways
}

// samples are the results of all turns: by system, then load, then round.
type samples map[string]map[*workload][]sample

// turns has systems take turns with each of the loads, every other round in reverse order.
func (b *bench) turns(ctx context.Context, systems []setup, loads []*workload) (samples, error) {
	return b.turnsAt(ctx, systems, loads, func(*workload) float64 { return 0 })
}

// turnsAt is turns with open loops: rate is asked for the requests per second of a load once the
// systems run; 0: a closed loop.
func (b *bench) turnsAt(ctx context.Context, systems []setup, loads []*workload,
	rate func(*workload) float64) (samples, error) {
	all := samples{}
	var running []*system
	for _, how := range systems {
		s, err := b.start(ctx, how, loads...)
		if err != nil {
			return nil, err
		}
		defer s.Stop()
		running = append(running, s)
		all[s.name] = map[*workload][]sample{}
	}
	loads = slices.Clone(loads)
	for round := range b.rounds {
		for _, w := range loads {
			for _, s := range running {
				got, err := b.turn(ctx, s, w, rate(w), round == 0)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", s.name, w.name, err)
				}
				all[s.name][w] = append(all[s.name][w], got)
			}
		}
		slices.Reverse(running)
		slices.Reverse(loads)
	}
	return all, nil
}

// turn offers one load to one system, as a closed loop or at a rate.
func (b *bench) turn(ctx context.Context, s *system, w *workload, rate float64, first bool) (sample, error) {
	wait := func() error { return nil }
	if first {
		wait = b.profiled(ctx, s,
			fmt.Sprintf("%s-%s-%s-%dx%d-%t", s.name, w.form.Name, w.model, w.conns, w.inFlight, w.gather))
	}
	before, err := s.CPU()
	if err != nil {
		return sample{}, err
	}
	own := ownCPU()
	c := w.config()
	c.Rate, c.Warmup, c.Duration = rate, b.duration/10, b.duration
	r, err := s.offer(ctx, strings.TrimSuffix("Serve/system="+s.name+"/"+w.key()+"/form="+w.form.Name, "/form="), c)
	if err := errors.Join(err, wait()); err != nil {
		return sample{}, err
	}
	own = ownCPU() - own
	after, err := s.CPU()
	return sampleOf(r, after-before, own), err
}

func sampleOf(r *load.Result, server, client time.Duration) sample {
	each := func(d time.Duration) time.Duration { return time.Duration(float64(d) / float64(r.Taken)) }
	return sample{
		rate: r.Rate(), mbps: float64(r.Bytes) / 1e6 / r.Elapsed.Seconds(),
		p50: r.Latency.Quantile(0.5), p99: r.Latency.Quantile(0.99), p999: r.Latency.Quantile(0.999),
		server: each(server), client: each(client), wire: float64(r.Wrote+r.Read) / float64(r.Taken),
	}
}

// ownCPU returns the processor time of this process, the client.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The figures of a turn.
func rate(s sample) float64   { return s.rate }
func p50(s sample) float64    { return float64(s.p50) }
func p99(s sample) float64    { return float64(s.p99) }
func server(s sample) float64 { return float64(s.server) }

// over completes a ratio with a figure of some turns over that of others, round by round.
func over(r ratio.Ratio, of, to []sample, figure func(sample) float64) ratio.Ratio {
	for round, s := range of {
		r.Rounds = append(r.Rounds, figure(s)/figure(to[round]))
	}
	return r
}

// overTrips is over, to two round trips: one stands for the way to the server and back, the other
// for the way to the container.
func overTrips(r ratio.Ratio, of, to []sample, figure func(sample) float64) ratio.Ratio {
	r = over(r, of, to, figure)
	for i := range r.Rounds {
		r.Rounds[i] /= 2
	}
	return r
}

var systemHead = []string{"system, load", "req/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/req",
	"client µs/req", "bytes/req"}

// table returns the median turn of every system under every load.
func (all samples) table(systems []setup, loads []*workload) (rows [][]string) {
	for _, w := range loads {
		for _, how := range systems {
			of := func(format string, value func(sample) float64) string {
				var v []float64
				for _, s := range all[how.name][w] {
					v = append(v, value(s))
				}
				return fmt.Sprintf(format, ratio.Median(v))
			}
			micros := func(value func(sample) time.Duration) string {
				return of("%.1f", func(s sample) float64 { return float64(value(s)) / 1e3 })
			}
			rows = append(rows, []string{
				how.name + ", " + w.name,
				of("%.0f", rate),
				of("%.0f", func(s sample) float64 { return s.mbps }),
				micros(func(s sample) time.Duration { return s.p50 }),
				micros(func(s sample) time.Duration { return s.p99 }),
				micros(func(s sample) time.Duration { return s.p999 }),
				micros(func(s sample) time.Duration { return s.server }),
				micros(func(s sample) time.Duration { return s.client }),
				of("%.0f", func(s sample) float64 { return s.wire }),
			})
		}
	}
	return rows
}
