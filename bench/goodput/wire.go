package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/scheduler/sim"
)

const (
	// With this many connections hardly any has two requests in flight. Answers on a connection
	// are in order, so a request that waits until its deadline would delay the next one.
	connections = 512
	// Share of its best goodput that the default strategy must reach at every load above the
	// capacity.
	ofBest = 0.9
	// Rounds of all loads with the default strategy; the median counts, as the machine's other work
	// varies.
	rounds = 3
	// Allowance for the way from the generator to the server and back.
	grace = 2 * time.Millisecond
)

// wire prints the goodput of the strategies over real sockets, alongside the simulation's, and
// returns the broken promises.
func wire(ctx context.Context, p sim.Profile, loads []float64, length time.Duration, seed uint64,
	only string) (broken []string, err error) {
	err = withRig(ctx, p, func(r *rig) (err error) {
		broken, err = r.goodput(ctx, loads, length, seed, only)
		return err
	})
	return broken, err
}

func (r *rig) goodput(ctx context.Context, loads []float64, length time.Duration, seed uint64,
	only string) (broken []string, err error) {
	p := r.profile
	capacity, err := r.capacity(ctx, length)
	if err != nil {
		return nil, err
	}
	fmt.Printf("%s; Poisson, one SLO; on the wire: capacity %.0f rows/s measured, %.0f computed\n", p.Name, capacity,
		p.Capacity())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "load\t\tin time\tof capacity\tsimulated\tp50\tp99\trefused p99.9\t")
	best := 0.0
	var goodput []float64 // of the default strategy, by load
	for i, s := range sim.Strategies() {
		if only != "" && s.Name != only {
			continue
		}
		settings := map[string]string{"strategy": s.Config.Strategy, "objective": p.SLO.String(),
			"shed": fmt.Sprint(s.Config.Shed == nil)}
		if err := r.set(ctx, settings); err != nil {
			return nil, err
		}
		n := 1
		if i == 0 {
			n = rounds
		}
		runs := make([][]*load.Result, len(loads))
		for range n {
			for j, at := range loads {
				res, err := r.offer(ctx, load.Config{
					Conns: connections, Rate: at * capacity, Seed: seed, Warmup: warmup, Duration: length,
					Check: load.SameTensors,
				}, p.SLO)
				if err != nil {
					return nil, fmt.Errorf("%s at %.2f: %w", s.Name, at, err)
				}
				runs[j] = append(runs[j], res)
			}
		}
		for j, at := range loads {
			inTime := func(r *load.Result) int64 { return r.Latency.Within(p.SLO + grace) }
			slices.SortFunc(runs[j], func(a, b *load.Result) int { return cmp.Compare(inTime(a), inTime(b)) })
			res := runs[j][n/2]
			all := res.Latency.Count() + res.Refusal.Count()
			share, rate := float64(inTime(res))/float64(max(all, 1)), float64(inTime(res))/length.Seconds()/capacity
			simulated, err := sim.Run(sim.Cell{Profile: p, Load: at, Warm: 2 * time.Second, Length: length, Seed: seed},
				s)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(w, "%.2f\t%s\t%.1f %%\t%.2f\t%.2f\t%.1f ms\t%.1f ms\t%.1f ms\t\n", at, s.Name, 100*share, rate,
				simulated.OfCapacity(),
				milliseconds(res.Latency.Quantile(0.5)), milliseconds(res.Latency.Quantile(0.99)),
				milliseconds(res.Refusal.Quantile(0.999)))
			if i == 0 {
				goodput = append(goodput, rate)
				best = max(best, rate)
			}
		}
	}
	w.Flush()
	for i, at := range loads[:len(goodput)] {
		if at > 1 && goodput[i] < ofBest*best {
			broken = append(broken,
				fmt.Sprintf("on the wire at %.2f of the capacity: goodput is %.2f of it, want %.2f of the best, %.2f",
					at, goodput[i], ofBest, best))
		}
	}
	if len(goodput) > 0 {
		more, err := r.recovery(ctx, capacity, seed)
		if err != nil {
			return nil, fmt.Errorf("recovery: %w", err)
		}
		broken = append(broken, more...)
	}
	return broken, nil
}
