package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	echoClients = 16
	echoRounds  = 5
)

// besideEcho has as many clients ask containers that take no time, and references, in turns: a bare
// echo, and servers that do no more than pass the rows of some requests to a loop in Python at
// once. Processors are the limit of all.
func (o *options) besideEcho(ctx context.Context) error {
	if err := process.Build(ctx, o.dir, "cmd/shivad", "bench/echo", "bench/noop"); err != nil {
		return err
	}
	o.a, o.b = 0, 0
	systems := []*system{
		{name: "bare echo", start: echo},
		{name: "8 of the 16 at once to a loop in Python", start: floor(8)},
		{name: "all 16 at once to a loop in Python", start: floor(16)},
		{name: "shivad, container in Go", start: noop},
		{name: "shivad, container in Python", start: shivad(true)},
	}
	groups, loads := make([]process.Group, len(systems)), make([]load.Config, len(systems))
	for i, s := range systems {
		var err error
		defer func() { groups[i].Stop() }()
		if loads[i], err = s.begin(ctx, o, &groups[i]); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		loads[i].Conns, loads[i].Warmup, loads[i].Duration = echoClients, 300*time.Millisecond, o.length
	}
	used := make([]time.Duration, len(systems))
	taken := make([]int64, len(systems))
	for range echoRounds {
		for i, s := range systems {
			before, err := groups[i].CPU()
			if err != nil {
				return err
			}
			r, err := load.Run(ctx, loads[i])
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			after, err := groups[i].CPU()
			if err != nil {
				return err
			}
			s.cells = append(s.cells, cell{rate: r.Rate(), p50: r.Latency.Quantile(0.5)})
			used[i], taken[i] = used[i]+after-before, taken[i]+r.Taken
		}
	}
	fmt.Printf("%d clients that ask again on each answer\n", echoClients)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "system\trate\tof the echo\trounds\tp50, µs\tCPU of the server's side, µs/request\t")
	for i, s := range systems {
		var rates, shares, p50s []float64
		for k, c := range s.cells {
			rates, shares = append(rates, c.rate), append(shares, c.rate/systems[0].cells[k].rate)
			p50s = append(p50s, c.p50.Seconds()*1e6)
		}
		fmt.Fprintf(w, "%s\t%.0f/s\t%.2f\t%.2f..%.2f\t%.0f\t%.1f\t\n", s.name, ratio.Median(rates),
			ratio.Median(shares), slices.Min(shares), slices.Max(shares), ratio.Median(p50s),
			used[i].Seconds()*1e6/float64(max(1, taken[i])))
	}
	return w.Flush()
}

func echo(o *options, g *process.Group) (string, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return "", err
	}
	return addr, g.Start(o.dir, filepath.Join(o.dir, "echo"), "-listen", addr)
}

func floor(size int) func(*options, *process.Group) (string, error) {
	return func(o *options, g *process.Group) (string, error) {
		addr, err := process.FreeAddr()
		if err != nil {
			return "", err
		}
		path := filepath.Join(o.dir, fmt.Sprintf("floor-%d", size))
		err = g.Start(o.dir, filepath.Join(o.dir, "echo"), "-listen", addr, "-group", fmt.Sprint(size), "-peer", path)
		if err != nil {
			return "", err
		}
		return addr, g.Start(o.dir, o.python, filepath.Join("bench", "callers", "floor.py"), path)
	}
}

func noop(o *options, g *process.Group) (string, error) {
	s, err := process.Shivad(o.dir, process.Options{})
	if err == nil {
		err = s.Start(o.dir, filepath.Join(o.dir, "noop"), "-servers", s.Containers, "doubler:FP32:64")
		*g = s.Group
	}
	return s.TCP, err
}
