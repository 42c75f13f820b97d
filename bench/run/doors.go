package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

// A doorLoad is one load for all doors, with the same total number of requests in flight, on as few
// connections as the wire allows.
type doorLoad struct {
	name            string // for the tables
	model           string
	shape           tensor.Shape
	conns, inFlight int     // HTTP: conns x inFlight connections, one request in flight on each
	floor           float64 // of the ratio of the rate in bytes to Shiva's; 0: none
}

var doorLoads = []*doorLoad{
	{name: "64 B, 256 in flight", model: "small", shape: tensor.Shape{16}, conns: 16, inFlight: 16},
	{name: "602 KB, 8 in flight", model: "picture", shape: tensor.Shape{3, 224, 224}, conns: 4, inFlight: 2, floor: 0.5},
}

// doorNames are the names of the forms in the tables.
var doorNames = map[string]string{"shiva": "Shiva", "rest": "REST, bytes", "rest-json": "REST, JSON", "grpc": "gRPC, raw"}

// A doorTurn is the result of a load through one door.
type doorTurn struct {
	rate           float64
	p50, p99       time.Duration
	server, client time.Duration // processor time per request
	wire           float64       // bytes per request, both ways
}

// doors offers the same load to one model inside the server's process through each of the doors
// in turn, every other round in reverse order. It returns the ratios and a table of medians.
func doors(ctx context.Context, o options, bin string) ([]ratio.Ratio, [][]string, error) {
	if err := process.Build(ctx, bin, "bench/door"); err != nil {
		return nil, nil, err
	}
	s, err := startDoors(bin)
	if err != nil {
		return nil, nil, err
	}
	defer s.Stop()
	order := slices.Clone(load.Forms)
	all := make(map[string][][]doorTurn) // by form, then load, then round
	for _, f := range order {
		all[f.Name] = make([][]doorTurn, len(doorLoads))
	}
	for round := range o.rounds {
		for i, l := range doorLoads {
			for _, f := range order {
				got, err := s.turn(ctx, o, l, f, round == 0)
				if err != nil {
					return nil, nil, fmt.Errorf("run: door %s, %s: %w", f.Name, l.name, err)
				}
				all[f.Name][i] = append(all[f.Name][i], got)
			}
		}
		slices.Reverse(order)
	}
	return doorRatios(all), doorTable(all), nil
}

// A doorSystem is the server with all doors open, and the requests for it.
type doorSystem struct {
	*system
	addrs  map[load.Wire]string
	frames map[string][][]byte // by form and load
}

func startDoors(bin string) (*doorSystem, error) {
	var shiva, http, grpc, profile string
	if err := process.FreeAddrs(&shiva, &http, &grpc, &profile); err != nil {
		return nil, err
	}
	s := &doorSystem{
		system: &system{name: "doors", addr: shiva, profile: profile},
		addrs:  map[load.Wire]string{load.Shiva: shiva, load.HTTP: http, load.GRPC: grpc},
		frames: make(map[string][][]byte),
	}
	args := []string{"-listen", shiva, "-rest", http, "-grpc", grpc, "-admin", profile, "-max-batch", strconv.Itoa(maxBatch)}
	for _, l := range doorLoads {
		args = append(args, fmt.Sprintf("%s:FP32:%s", l.model, dims(l.shape, ",")))
		xs, err := load.Floats(l.conns*l.inFlight, l.shape)
		if err != nil {
			return nil, err
		}
		for _, f := range load.Forms {
			for _, x := range xs {
				frame, err := f.Frame(l.model, x)
				if err != nil {
					return nil, err
				}
				s.frames[f.Name+l.model] = append(s.frames[f.Name+l.model], frame)
			}
		}
	}
	if err := s.Start(bin, filepath.Join(bin, "door"), args...); err != nil {
		return nil, fmt.Errorf("run: doors: %w", err)
	}
	return s, nil
}

// turn offers one load in one form.
func (s *doorSystem) turn(ctx context.Context, o options, l *doorLoad, f load.Form, first bool) (doorTurn, error) {
	c := load.Config{
		Wire: f.Wire, Addr: s.addrs[f.Wire], Frames: s.frames[f.Name+l.model], Conns: l.conns, InFlight: l.inFlight,
		Warmup: o.duration / 10, Duration: o.duration,
		Check: func(request, answer []byte) error { return f.Same(4*elements(l.shape), request, answer) },
	}
	if f.Wire == load.HTTP {
		c.Conns, c.InFlight = l.conns*l.inFlight, 1
	}
	if first {
		if err := s.answers(ctx, c); err != nil {
			return doorTurn{}, err
		}
	}
	profiled := s.startProfile(ctx, o, first, fmt.Sprintf("doors-%s-%s", f.Name, l.model))
	server, err := s.CPU()
	if err != nil {
		return doorTurn{}, err
	}
	client := ownCPU()
	r, err := s.offer(ctx, fmt.Sprintf("Doors/form=%s/model=%s/conns=%d/inflight=%d", f.Name, l.model, c.Conns, c.InFlight), c)
	client = ownCPU() - client
	after, cpuErr := s.CPU()
	if err := errors.Join(err, <-profiled, cpuErr); err != nil {
		return doorTurn{}, err
	}
	n := float64(r.Taken)
	return doorTurn{
		rate: r.Rate(), p50: r.Latency.Quantile(0.5), p99: r.Latency.Quantile(0.99),
		server: time.Duration(float64(after-server) / n), client: time.Duration(float64(client) / n),
		wire: float64(r.Wrote+r.Read) / n,
	}, nil
}

func elements(s tensor.Shape) int {
	n, _ := s.Elements()
	return n
}

// ownCPU returns the processor time of this process, the client.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// doorRatios returns the ratios of the rate through each door to that through Shiva's, round by
// round.
func doorRatios(all map[string][][]doorTurn) (rs []ratio.Ratio) {
	for i, l := range doorLoads {
		for _, f := range load.Forms[1:] {
			r := ratio.Ratio{What: fmt.Sprintf("%s / Shiva: rate, %s", doorNames[f.Name], l.name)}
			if l.floor > 0 && f.Name != "rest-json" {
				r.Bound, r.Limit = ratio.AtLeast, l.floor
			}
			for round, t := range all[f.Name][i] {
				r.Rounds = append(r.Rounds, t.rate/all["shiva"][i][round].rate)
			}
			rs = append(rs, r)
		}
	}
	return rs
}

var doorHead = []string{"door, load", "req/s", "p50 ms", "p99 ms", "server CPU µs/req", "client CPU µs/req", "bytes/req"}

// doorTable returns the median turn through every door.
func doorTable(all map[string][][]doorTurn) (rows [][]string) {
	for i, l := range doorLoads {
		for _, f := range load.Forms {
			of := func(format string, value func(doorTurn) float64) string {
				var v []float64
				for _, t := range all[f.Name][i] {
					v = append(v, value(t))
				}
				return fmt.Sprintf(format, ratio.Median(v))
			}
			rows = append(rows, []string{
				doorNames[f.Name] + ", " + l.name,
				of("%.0f", func(t doorTurn) float64 { return t.rate }),
				of("%.2f", func(t doorTurn) float64 { return t.p50.Seconds() * 1e3 }),
				of("%.2f", func(t doorTurn) float64 { return t.p99.Seconds() * 1e3 }),
				of("%.1f", func(t doorTurn) float64 { return t.server.Seconds() * 1e6 }),
				of("%.1f", func(t doorTurn) float64 { return t.client.Seconds() * 1e6 }),
				of("%.0f", func(t doorTurn) float64 { return t.wire }),
			})
		}
	}
	return rows
}
