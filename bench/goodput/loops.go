package main

import (
	"context"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/scheduler/sim"
)

// loops simulates clients that ask again on each answer, and open loops, with the scheduler's rule
// for them and without, and returns the promises that are broken.
func loops(ctx context.Context, length time.Duration, seed uint64, jobs int) (broken []string, err error) {
	all, err := sim.RunLoopCells(ctx, sim.LoopCells(5*time.Second, length, seed), jobs)
	if err != nil {
		return nil, err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "clients that ask again on each answer\twithout\tmean\twith\tmean\tpossible\tshare\twithout failed\twith\t")
	for _, o := range all {
		if o.Later == 0 {
			with, without := &o.With.Closed, &o.Without.Closed
			fmt.Fprintf(w, "%s\t%.0f/s\t%.1f ms\t%.0f/s\t%.1f ms\t%s\t%.2f\t%.1f %%\t%.1f %%\t\n", o.Name, without.Rate,
				milliseconds(without.Mean),
				with.Rate, milliseconds(with.Mean), possible(o), with.Rate/o.Reference(), 100*without.Failed,
				100*with.Failed)
		}
	}
	w.Flush()
	fmt.Println()
	fmt.Fprintln(w, "open loops\twithout\tmean\tp99\twith\tmean\tp99\tmean, ratio\tclients without\twith\t")
	for _, o := range all {
		if o.Later > 0 {
			with, without := &o.With.Open, &o.Without.Open
			clients := "\t"
			if o.Clients > 0 {
				clients = fmt.Sprintf("%.0f/s\t%.0f/s", o.Without.Closed.Rate, o.With.Closed.Rate)
			}
			fmt.Fprintf(w, "%s\t%.0f/s\t%.2f ms\t%.2f ms\t%.0f/s\t%.2f ms\t%.2f ms\t%.3f\t%s\t\n", o.Name, without.Rate,
				milliseconds(without.Mean), milliseconds(without.P99),
				with.Rate, milliseconds(with.Mean), milliseconds(with.P99), float64(with.Mean)/float64(without.Mean),
				clients)
		}
		broken = append(broken, o.Broken()...)
	}
	w.Flush()
	fmt.Println()
	return broken, nil
}

// possible is the rate that is known to be possible.
func possible(o *sim.LoopOutcome) string {
	if o.Possible == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f/s", o.Possible)
}
