package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run() error {
	var (
		sizes   = flag.String("sizes", "1,4,16,64,256,1000", "numbers of servers of the fleets in the curve, comma-separated")
		servers = flag.Int("servers", 1000, "number of servers of the fleet in the events")
		only    = flag.String("only", "", "run only this: curve, events, or a word in the name of an event; empty: everything")
		subset  = flag.Int("subset", sessions, "number of servers with which each container has a session")
		seed    = flag.Uint64("seed", 1, "seed of all random numbers")
		atOnce  = flag.Int("at-once", 2, "number of simulations at once; each of 1,000 servers takes up to 5 GB")
		chart   = flag.String("chart", "", "`file` to draw the curve and the events into, .svg or .png")
	)
	flag.Parse()
	var many []int
	for _, one := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 {
			return fmt.Errorf("-sizes: expected numbers from 1, separated by commas, got %q", *sizes)
		}
		many = append(many, n)
	}
	if *servers < 1 || *atOnce < 1 || *subset < 1 {
		return fmt.Errorf("-servers %d, -at-once %d, -subset %d: expected all above 0", *servers, *atOnce, *subset)
	}
	var acts []act
	for _, a := range events(*servers, *seed) {
		if *only == "" || *only == "events" || strings.Contains(a.name, *only) {
			acts = append(acts, a)
		}
	}
	steady := len(acts)
	if *only == "" || *only == "curve" {
		acts = append(acts, curve(many, *seed)...)
	}
	if len(acts) == 0 {
		return fmt.Errorf("-only: expected curve, events, or a word of one of these, got %q", *only)
	}
	for i := range acts {
		acts[i].fleet.Subset = *subset
	}
	results, err := simulateAll(acts, *atOnce)
	if err != nil {
		return err
	}
	fmt.Printf("%d servers for a container; seed %d\n", *subset, *seed)
	if len(acts) > steady {
		fmt.Print("\n", curveTable(results[steady:]))
		fmt.Print("\n", redisTable(many))
	}
	if steady > 0 {
		fmt.Print("\n", eventTable(acts[:steady], results[:steady]))
		fmt.Print("\n", trafficTable(acts[:steady], results[:steady]))
	}
	if *chart == "" {
		return nil
	}
	return draw(context.Background(), *chart, acts, results, steady)
}

// simulateAll plays all acts in order, atOnce at a time.
func simulateAll(acts []act, atOnce int) ([]*Result, error) {
	results, errs := make([]*Result, len(acts)), make([]error, len(acts))
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i, a := range acts {
		places <- struct{}{}
		all.Go(func() {
			results[i], errs[i] = simulate(a.fleet)
			if errs[i] == nil {
				fmt.Fprintf(os.Stderr, "%d servers, %s: %.4f of the oracle\n", a.fleet.Servers, a.name, results[i].Share())
			}
			<-places
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return results, nil
}
