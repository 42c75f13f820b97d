// Sim simulates servers that share containers: the real scheduler and the real rounds of
// containers, on virtual time, over a network with delays. It prints the share of one server's
// goodput that several servers reach at the same load, with grants and without.
//
//	go run ./bench/sim
//	go run ./bench/sim -servers 4 -replicas 1 -loads 1.2 -profile accelerator -bursts
//
// It fails if several servers reach less than 0.95 (two servers) or 0.92 (more) of one server's
// goodput.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler/sim"
)

// The shares of one server's goodput that several servers must reach.
const (
	ofTwo  = 0.95
	ofMore = 0.92
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
}

// accelerated is the largest number of rows in an execution of the accelerator.
const accelerated = 32

// profiles are the containers by name.
func profiles() map[string]sim.Profile {
	const ms = time.Millisecond
	return map[string]sim.Profile{
		"linear": {Name: "5 ms + 0.5 ms n, 50 ms", A: 5 * ms, B: ms / 2, Noise: 0.05, SLO: 50 * ms},
		"accelerator": {Name: "120 ms for up to 32 rows, 500 ms", A: 120 * ms, Noise: 0.02, SLO: 500 * ms,
			Kind: sim.Kind{
				Curve: func(rows int) time.Duration {
					if rows > accelerated {
						return time.Hour
					}
					return 120 * ms
				},
			}},
	}
}

// counts parses a list of numbers.
func counts(text string) (all []int, err error) {
	for _, one := range strings.Split(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("expected numbers from 1, separated by commas, got %q", text)
		}
		all = append(all, n)
	}
	return all, nil
}

func run() error {
	var (
		servers  = flag.String("servers", "2,4", "numbers of servers, comma-separated")
		replicas = flag.String("replicas", "1,2,8", "numbers of containers, comma-separated")
		loads    = flag.String("loads", "0.8,1.2,2", "loads, as shares of the capacity, comma-separated")
		profile  = flag.String("profile", "linear", "kind of container: linear or accelerator")
		bursts   = flag.Bool("bursts", false, "rows arrive in bursts of 200 ms")
		mixed    = flag.Bool("mixed", false, "mix deadlines of half, once and twice the SLO")
		uneven   = flag.Bool("uneven", false, "two thirds of the rows come to the first server")
		delay    = flag.Duration("delay", 100*time.Microsecond, "delay of a message, one way")
		jitter   = flag.Duration("jitter", 50*time.Microsecond, "mean of the random time that is added to the delay")
		serve    = flag.Duration("serve", 20*time.Microsecond, "time that a server takes for each row of an answer before it reads the next message")
		length   = flag.Duration("length", 10*time.Second, "virtual time that is measured, after two seconds of warm-up")
		seed     = flag.Uint64("seed", 1, "seed of all random numbers")
	)
	flag.Parse()
	p, ok := profiles()[*profile]
	if !ok {
		return fmt.Errorf("-profile: expected linear or accelerator, got %q", *profile)
	}
	var many, hosts []int
	var err error
	if many, err = counts(*servers); err != nil {
		return fmt.Errorf("-servers: %w", err)
	}
	if hosts, err = counts(*replicas); err != nil {
		return fmt.Errorf("-replicas: %w", err)
	}
	fmt.Printf("%s; delay %v and %v; bursts %v; mixed deadlines %v; uneven %v; %v; seed %d\n\n", p.Name, *delay,
		*jitter, *bursts, *mixed, *uneven, *length, *seed)
	fmt.Println("| replicas | load | servers | one server | with grants, of that | without, of that | rows of an execution: one, with, without | p50 ms: one, with, without | messages a row: one, with, without |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	broken := 0
	for _, r := range hosts {
		for _, text := range strings.Split(*loads, ",") {
			load, err := strconv.ParseFloat(text, 64)
			if err != nil || load <= 0 {
				return fmt.Errorf("-loads: expected numbers above 0, separated by commas, got %q", *loads)
			}
			f := sim.Fleet{Cell: sim.Cell{Profile: p, Load: load, Bursts: *bursts, Mixed: *mixed, Warm: 2 * time.Second,
				Length: *length, Seed: *seed},
				Servers: 1, Delay: *delay, Jitter: *jitter, Serve: *serve}
			f.Replicas = r
			if *profile == "accelerator" {
				f.Most = accelerated
			}
			one, err := sim.RunFleet(f, sim.Strategies()[0])
			if err != nil {
				return err
			}
			for _, n := range many {
				f.Servers, f.Uneven, f.Grants = n, *uneven, true
				with, err := sim.RunFleet(f, sim.Strategies()[0])
				if err != nil {
					return err
				}
				f.Grants = false
				without, err := sim.RunFleet(f, sim.Strategies()[0])
				if err != nil {
					return err
				}
				bar, note := ofTwo, ""
				if n > 2 {
					bar = ofMore
				}
				of := func(o *sim.FleetResult) float64 { return float64(o.Good) / float64(one.Good) }
				if n > 1 && of(with) < bar {
					broken++
					note = fmt.Sprintf(" (%.2f!)", bar)
				}
				ms := func(o *sim.FleetResult) string { return fmt.Sprintf("%.1f", float64(o.P50)/1e6) }
				each := func(o *sim.FleetResult) string {
					return fmt.Sprintf("%.2f", float64(o.Messages)/float64(o.Offered))
				}
				fmt.Printf("| %d | %s | %d | %.3f | %.3f%s | %.3f | %.0f, %.0f, %.0f | %s, %s, %s | %s, %s, %s |\n", r,
					text, n, one.Share(), of(with), note, of(without),
					one.MeanBatch, with.MeanBatch, without.MeanBatch, ms(one), ms(with), ms(without), each(one),
					each(with), each(without))
			}
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d cells below their share", broken)
	}
	return nil
}
