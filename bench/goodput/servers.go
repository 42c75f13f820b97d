package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/scheduler/sim"
)

// The shares of one server's goodput that servers reach which share its containers.
const (
	ofTwo  = 0.95
	ofMore = 0.92
	// Of each load with one server and with several, in turn; the median counts.
	sharedRounds = 7
)

// A fleet is servers that share containers, as processes. The processes are the first one's.
type fleet []*rig

// startFleet starts servers and replicas.
func startFleet(ctx context.Context, p sim.Profile, servers, replicas int) (f fleet, err error) {
	first := &rig{profile: p}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, first.stop())
		}
	}()
	if err := first.build(ctx, "cmd/shivad", "bench/sleeper"); err != nil {
		return nil, err
	}
	var addrs []string
	for i := range servers {
		r := first
		if i > 0 {
			r = &rig{profile: p, dir: first.dir}
		}
		addr, err := r.serve()
		if i > 0 {
			first.running = append(first.running, r.running...)
		}
		if err != nil {
			return nil, err
		}
		f, addrs = append(f, r), append(addrs, addr)
	}
	for range replicas {
		if err := first.sleep(strings.Join(addrs, ",")); err != nil {
			return nil, err
		}
	}
	for _, r := range f {
		if err := r.ready(ctx); err != nil {
			return nil, err
		}
		if err := r.set(ctx, map[string]string{"objective": p.SLO.String()}); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// inTime offers a rate to all servers together, and returns how many rows were answered in time and
// how many were offered.
func (f fleet) inTime(ctx context.Context, rate float64, length time.Duration, seed uint64) (good, all int64, err error) {
	results := make([]*load.Result, len(f))
	errs := make(chan error)
	for i, r := range f {
		go func() { // ends with its load; joined below
			var err error
			results[i], err = r.offer(ctx, load.Config{
				Conns: connections / len(f), Rate: rate / float64(len(f)), Seed: seed + uint64(i), Warmup: warmup, Duration: length, Check: load.SameTensors,
			}, r.profile.SLO)
			errs <- err
		}()
	}
	for range f {
		if e := <-errs; e != nil {
			err = e
		}
	}
	if err != nil {
		return 0, 0, err
	}
	for i, r := range f {
		good += results[i].Latency.Within(r.profile.SLO + grace)
		all += results[i].Latency.Count() + results[i].Refusal.Count()
	}
	return good, all, nil
}

// shared prints what share of one server's goodput several servers reach that share as many
// containers, at the same loads, and returns the broken promises.
func shared(ctx context.Context, p sim.Profile, servers, replicas int, loads []float64, length time.Duration, seed uint64) (broken []string, err error) {
	one, err := startFleet(ctx, p, 1, replicas)
	if err != nil {
		return nil, err
	}
	defer func() { one[0].stop() }()
	many, err := startFleet(ctx, p, servers, replicas)
	if err != nil {
		return nil, err
	}
	defer func() { many[0].stop() }()
	p.Replicas = replicas
	fmt.Printf("%s; Poisson, one SLO; %d servers share %d containers, beside one server with as many; capacity %.0f rows/s\n", p.Name, servers, replicas, p.Capacity())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "load\tone server\t%d servers\tof one\trounds\t\n", servers)
	for _, at := range loads {
		var ratios []float64
		var shares [2]float64
		for round := range sharedRounds {
			for i, f := range []fleet{one, many} {
				good, all, err := f.inTime(ctx, at*p.Capacity(), length, seed+uint64(round))
				if err != nil {
					return nil, fmt.Errorf("%d servers at %.2f: %w", len(f), at, err)
				}
				shares[i] = float64(good) / float64(max(all, 1))
			}
			ratios = append(ratios, shares[1]/max(shares[0], 1e-9))
		}
		slices.Sort(ratios)
		ratio := ratios[sharedRounds/2]
		fmt.Fprintf(w, "%.2f\t%.1f %%\t%.1f %%\t%.3f\t%.3f to %.3f\t\n", at, 100*shares[0], 100*shares[1], ratio, ratios[0], ratios[sharedRounds-1])
		bar := ofTwo
		if servers > 2 {
			bar = ofMore
		}
		if ratio < bar {
			broken = append(broken, fmt.Sprintf("%d servers at %.2f of the capacity: %.3f of one server's goodput, want %.2f", servers, at, ratio, bar))
		}
	}
	w.Flush()
	return broken, nil
}
