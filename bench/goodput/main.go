// Command goodput shows the share that each strategy of the scheduler answers in time, at loads
// below and above the capacity, and checks the promises of the default strategy (package sim).
//
//	goodput [-length 20s] [-seed N] [-jobs N] [-profile N] [-loads 0.5,1.5] [-svg FILE]
//	goodput -loops [-length 20s] [-seed N] [-jobs N]
//	goodput -wire [-length 5s] [-strategy NAME] ...
//	goodput -deadlines [-requests 1000000]
//	goodput -servers 2 [-replicas 1] [-slow 1]
//
// It also shows what clients that ask again on each answer get, alone and beside open loops; with
// -loops only that.
//
// With -wire it measures shivad itself, with real sockets and a container process that sleeps, and
// compares it with the simulation. With -deadlines it measures the lateness of answers on the same
// pair, and with -servers the goodput of several shivads that share containers, against that of
// one.
//
// It exits with 1 if a promise is broken.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/scheduler/sim"
)

func main() {
	onWire := flag.Bool("wire", false, "measure shivad, not only the simulation")
	onlyLoops := flag.Bool("loops", false, "simulate only clients that ask again on each answer")
	onDeadlines := flag.Bool("deadlines", false, "measure how late shivad answers requests with random deadlines")
	requests := flag.Int("requests", 1_000_000, "number of requests with -deadlines")
	servers := flag.Int("servers", 0, "measure this `number` of servers that share containers")
	replicas := flag.Int("replicas", 1, "`number` of containers with -servers")
	slow := flag.Int("slow", 1, "with -servers: executions and deadlines that are this many `times` as long, and a load divided by it")
	length := flag.Duration("length", 0, "`time` per cell; 0: 20s, virtual, 5s on the wire, and 3s with -servers")
	seed := flag.Uint64("seed", 1, "seed of arrivals and noise")
	jobs := flag.Int("jobs", runtime.GOMAXPROCS(0), "`number` of simulations at once")
	profile := flag.Int("profile", 0, "measure only the profile of this `number`, from 1")
	svg := flag.String("svg", "", "`file` to draw the simulated goodput into")
	only := flag.String("strategy", "", "with -wire: measure only the strategy of this `name`")
	loads := flag.String("loads", "", "measure only these loads, comma-separated")
	flag.Parse()
	process.Main("goodput", func(ctx context.Context) (broken []string, err error) {
		switch {
		case *onDeadlines:
			return deadlines(ctx, sim.Profiles()[1], *requests, *seed)
		case *onlyLoops:
			return loops(ctx, cmp.Or(*length, 20*time.Second), *seed, *jobs)
		case *servers > 0:
			at := []float64{0.8, 1.2, 2}
			if *loads != "" {
				if at, err = parseLoads(*loads); err != nil {
					return nil, err
				}
			}
			if *replicas < 1 || *slow < 1 {
				return nil, fmt.Errorf("-replicas %d, -slow %d: expected both above 0", *replicas, *slow)
			}
			s := sharing{sim.Profiles()[1], *servers, *replicas, at, *slow, cmp.Or(*length, 3*time.Second), *seed}
			err = withPrograms(ctx, func(dir string) (err error) {
				broken, err = s.run(ctx, dir)
				return err
			})
			return broken, err
		default:
			return goodput{*onWire, *length, *seed, *jobs, *profile, *loads, *only, *svg}.run(ctx)
		}
	})
}

// goodput is the measurement of every strategy, by the flags of the same names.
type goodput struct {
	wire             bool
	length           time.Duration
	seed             uint64
	jobs, profile    int
	loads, only, svg string
}

func (g goodput) run(ctx context.Context) (broken []string, err error) {
	profiles := sim.Profiles()
	if g.profile > len(profiles) || g.profile < 0 {
		return nil, fmt.Errorf("expected a profile from 1 to %d, got %d", len(profiles), g.profile)
	}
	if g.profile > 0 {
		profiles = profiles[g.profile-1 : g.profile]
	}
	at := sim.Loads()
	if g.loads != "" {
		if at, err = parseLoads(g.loads); err != nil {
			return nil, err
		}
	}
	if g.wire {
		if g.profile == 0 {
			profiles = profiles[1:2]
		}
		if g.loads == "" {
			at = []float64{0.5, 0.8, 1.2, 1.5, 2, 5}
		}
		return wire(ctx, profiles[0], at, cmp.Or(g.length, 5*time.Second), g.seed, g.only)
	}
	g.length = cmp.Or(g.length, 20*time.Second)
	cells := sim.Cells(profiles, at, 2*time.Second, g.length, g.seed)
	if g.profile == 0 {
		cells = append(cells, sim.KindCells(at, 2*time.Second, g.length, g.seed)...)
	}
	all, err := sim.RunAll(ctx, cells, g.jobs)
	if err != nil {
		return nil, err
	}
	if g.svg != "" {
		if err := drawGoodput(ctx, g.svg, all); err != nil {
			return nil, err
		}
	}
	for len(all) > 0 {
		print(all[:len(at)])
		for _, o := range all[:len(at)] {
			broken = append(broken, o.Broken()...)
		}
		all = all[len(at):]
	}
	if g.profile > 0 {
		return broken, nil
	}
	more, err := loops(ctx, g.length, g.seed, g.jobs)
	return append(broken, more...), err
}

func parseLoads(list string) (all []float64, err error) {
	for text := range strings.SplitSeq(list, ",") {
		load, err := strconv.ParseFloat(text, 64)
		if err != nil || load <= 0 {
			return nil, fmt.Errorf("%q is not a load", text)
		}
		all = append(all, load)
	}
	return all, nil
}

// print prints one table: a profile under one kind of arrivals with one kind of deadlines, load
// by load.
func print(rows []*sim.Outcome) {
	c := rows[0].Cell
	arrivals, deadlines := "Poisson", "one SLO"
	if c.Bursts {
		arrivals = "bursts"
	}
	if c.Mixed {
		deadlines = "half, once and twice the SLO"
	}
	fmt.Printf("%s; %s, %s; capacity %.0f rows/s\n", c.Name, arrivals, deadlines, c.Capacity())
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "load\t\tin time\tof capacity\tmean batch\tp50\tp99\t")
	for _, o := range rows {
		line := func(load, name string, r *sim.Result) {
			fmt.Fprintf(w, "%s\t%s\t%.1f %%\t%.2f\t%.1f\t%.1f ms\t%.1f ms\t\n", load, name, 100*r.Share(),
				r.OfCapacity(), r.MeanBatch,
				r.P50.Seconds()*1e3, r.P99.Seconds()*1e3)
		}
		line(fmt.Sprintf("%.2f", o.Load), "oracle", o.Oracle)
		for i, s := range sim.Strategies() {
			line("", s.Name, o.Strategies[i])
		}
		line("", "at once", o.AtOnce)
	}
	w.Flush()
	fmt.Println()
}
