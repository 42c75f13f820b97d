package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/scheduler/sim"
)

// The shares of one server's goodput that several servers must reach when they share its
// containers.
const (
	ofTwo  = 0.95
	ofMore = 0.92
	// Rounds of each load, with one server and with several in turn; the median counts.
	sharedRounds = 7
)

// A sharing describes servers that share containers, and the load that they are offered.
type sharing struct {
	profile           sim.Profile // of one container
	servers, replicas int
	loads             []float64 // as shares of the capacity of all containers
	slow              int       // factor on all times of the profile
	length            time.Duration
	seed              uint64
}

// slowed returns the profile with all of its times multiplied: the same system at a fraction of the
// rate, except that processors and the network are as fast as before.
func slowed(p sim.Profile, times int) sim.Profile {
	by := time.Duration(times)
	p.A, p.B, p.SLO = by*p.A, by*p.B, by*p.SLO
	if times > 1 {
		p.Name = fmt.Sprintf("%s, all %d times as slow", p.Name, times)
	}
	return p
}

// A turn is the result of one load.
type turn struct {
	good, all int64         // rows that were answered in time, and that were offered
	idle      float64       // share of the time of all processors
	late      time.Duration // p99 lateness of the generator itself
}

func (t turn) share() float64 { return float64(t.good) / float64(max(1, t.all)) }

// offer offers a rate to all servers together, and returns the result. Counting starts after ramp.
func (f fleet) offer(ctx context.Context, rate float64, ramp, length time.Duration, seed uint64) (t turn, err error) {
	results := make([]*load.Result, len(f))
	errs := make(chan error)
	idle, all, err := process.Processors()
	if err != nil {
		return turn{}, err
	}
	for i, r := range f {
		go func() { // ends with its load; joined below
			var err error
			results[i], err = r.offer(ctx, load.Config{
				Conns: connections / len(f), Rate: rate / float64(len(f)), Seed: seed + uint64(i), Warmup: ramp,
				Duration: length, Check: load.SameTensors,
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
		return turn{}, err
	}
	idleThen, allThen, err := process.Processors()
	if err != nil {
		return turn{}, err
	}
	t.idle = float64(idleThen-idle) / float64(max(1, allThen-all))
	for i, r := range f {
		t.good += results[i].Latency.Within(r.profile.SLO + grace)
		t.all += results[i].Latency.Count() + results[i].Refusal.Count()
		t.late = max(t.late, results[i].Lag.Quantile(0.99))
	}
	return t, nil
}

// run prints the share of one server's goodput that several servers reach with as many shared
// containers, at the same loads, and returns the broken promises.
func (s sharing) run(ctx context.Context, dir string) (broken []string, err error) {
	p := slowed(s.profile, s.slow)
	fleets := make([]fleet, 2) // one server, and many
	for i, servers := range []int{1, s.servers} {
		if fleets[i], err = startFleet(ctx, dir, p, servers, s.replicas); err != nil {
			return nil, err
		}
		defer fleets[i].stop()
		for _, r := range fleets[i] {
			if err := r.set(ctx, map[string]string{"objective": p.SLO.String()}); err != nil {
				return nil, err
			}
		}
	}
	p.Replicas = s.replicas
	fmt.Printf("%s; Poisson, one SLO; %d servers share %d containers, beside one server with as many; capacity %.0f rows/s\n",
		p.Name, s.servers, s.replicas, p.Capacity())
	bound := ratio.Ratio{Bound: ratio.AtLeast, Limit: ofTwo}
	if s.servers > 2 {
		bound.Limit = ofMore
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "load\tone server\t%d servers\tof one\tlimit\trounds\tprocessors idle\tload late, p99\t\n", s.servers)
	for _, at := range s.loads {
		bound.Rounds = nil
		var shares [2][]float64
		var idle, late []float64
		for round := range sharedRounds {
			var turns [2]turn
			for i := range turns {
				which := (i + round) % 2 // every other round begins with the fleet
				f := fleets[which]
				turns[which], err = f.offer(ctx, at*p.Capacity(), time.Duration(s.slow)*warmup, s.length,
					s.seed+uint64(round))
				if err != nil {
					return nil, fmt.Errorf("%d servers at %.2f: %w", len(f), at, err)
				}
				shares[which] = append(shares[which], turns[which].share())
				idle, late = append(idle, turns[which].idle), append(late, turns[which].late.Seconds()*1e3)
			}
			bound.Rounds = append(bound.Rounds, turns[1].share()/max(turns[0].share(), 1e-9))
		}
		of := ratio.Median(bound.Rounds)
		fmt.Fprintf(w, "%.2f\t%.1f %%\t%.1f %%\t%.3f\t%.2f\t%.3f to %.3f\t%.0f %%\t%.2f ms\t\n", at,
			100*ratio.Median(shares[0]), 100*ratio.Median(shares[1]),
			of, bound.Limit, slices.Min(bound.Rounds), slices.Max(bound.Rounds), 100*ratio.Median(idle),
			ratio.Median(late))
		if !bound.Holds() {
			broken = append(broken,
				fmt.Sprintf("%d servers at %.2f of the capacity: %.3f of one server's goodput, want %.2f", s.servers,
					at, of, bound.Limit))
		}
	}
	w.Flush()
	return broken, nil
}
