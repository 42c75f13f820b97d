package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

const (
	echoClients = 16
	echoRounds  = 5
	// leastOfEcho is the least median of the rates as shares of the bare echo's.
	leastOfEcho = 0.6
)

// besideEcho has as many clients ask a container in Python that takes no time, and a bare echo, in
// turns. Processors are the limit of both.
func (o *options) besideEcho(ctx context.Context) (broken []string, err error) {
	remove, err := o.build(ctx, "cmd/shivad", "bench/echo")
	if err != nil {
		return nil, err
	}
	defer remove()
	o.a, o.b = 0, 0
	systems := []*system{{name: "bare echo", wire: load.Shiva, start: echo}, {name: "shivad", wire: load.Shiva, start: shivad(true)}}
	var loads [2]load.Config
	var groups [2]process.Group
	for i, s := range systems {
		defer func() { groups[i].Stop() }()
		if loads[i], err = s.begin(ctx, o, &groups[i]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		loads[i].Conns, loads[i].Warmup, loads[i].Duration = echoClients, 500*time.Millisecond, o.length
	}
	var shares []float64
	for range echoRounds {
		var rates [2]float64
		for i, s := range systems {
			before, err := groups[i].CPU()
			if err != nil {
				return nil, err
			}
			r, err := load.Run(ctx, loads[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			after, err := groups[i].CPU()
			if err != nil {
				return nil, err
			}
			rates[i] = r.Rate()
			fmt.Printf("%s: %.0f/s, p50 %v, %.1f us of processor time each\n", s.name, r.Rate(), r.Latency.Quantile(0.5), (after-before).Seconds()*1e6/float64(max(1, r.Taken)))
		}
		shares = append(shares, rates[1]/rates[0])
	}
	slices.Sort(shares)
	median := shares[len(shares)/2]
	fmt.Printf("shivad / bare echo, %d clients: %.2f (%.2f..%.2f)\n", echoClients, median, shares[0], shares[len(shares)-1])
	if median < leastOfEcho {
		broken = append(broken, fmt.Sprintf("%.2f of the bare echo's rate, want %g", median, leastOfEcho))
	}
	return broken, nil
}

func echo(o *options, g *process.Group) (string, error) {
	addr, err := process.FreeAddr()
	if err != nil {
		return "", err
	}
	return addr, g.Start(o.dir, filepath.Join(o.dir, "echo"), "-listen", addr)
}
