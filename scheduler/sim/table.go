package sim

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Loads returns the loads of a table, as shares of the capacity.
func Loads() []float64 { return []float64{0.5, 0.8, 0.95, 1.1, 1.3, 1.5, 2, 2.5} }

// An Outcome is a cell with the results of all strategies.
type Outcome struct {
	Cell
	Oracle, AtOnce *Result
	Strategies     []*Result // in the order of [Strategies], the default first
}

// Cells returns all combinations of profiles, arrivals, deadlines and loads.
func Cells(profiles []Profile, loads []float64, warm, length time.Duration, seed uint64) []Cell {
	var all []Cell
	for _, p := range profiles {
		for _, bursts := range []bool{false, true} {
			for _, mixed := range []bool{false, true} {
				for _, load := range loads {
					all = append(all, Cell{Profile: p, Load: load, Bursts: bursts, Mixed: mixed, Warm: warm,
						Length: length, Seed: seed})
				}
			}
		}
	}
	return all
}

// KindCells returns all combinations of [Kinds] and loads, with Poisson arrivals and one SLO.
func KindCells(loads []float64, warm, length time.Duration, seed uint64) []Cell {
	var all []Cell
	for _, p := range Kinds() {
		for _, load := range loads {
			all = append(all, Cell{Profile: p, Load: load, Warm: warm, Length: length, Seed: seed})
		}
	}
	return all
}

// RunAll runs cells, jobs of them at a time.
func RunAll(ctx context.Context, cells []Cell, jobs int) ([]*Outcome, error) {
	return all(ctx, cells, jobs, runCell)
}

// all runs cells, as many at once as there are jobs, and returns their outcomes in order.
func all[C, O any](ctx context.Context, cells []C, jobs int, run func(C) (O, error)) ([]O, error) {
	all := make([]O, len(cells))
	errs := make([]error, len(cells))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(jobs, 1) {
		wg.Go(func() {
			for i := range next {
				if all[i], errs[i] = run(cells[i]); errs[i] != nil {
					cancel()
				}
			}
		})
	}
	err := func() error {
		defer wg.Wait()
		defer close(next)
		for i := range cells {
			select {
			case next <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}()
	for _, e := range errs {
		if e != nil {
			return nil, e
		}
	}
	return all, err
}

func runCell(c Cell) (*Outcome, error) {
	o := &Outcome{Cell: c, Oracle: Oracle(c), AtOnce: AtOnce(c)}
	for _, s := range Strategies() {
		r, err := Run(c, s)
		if err != nil {
			return nil, err
		}
		o.Strategies = append(o.Strategies, r)
	}
	return o, nil
}

// The promises of the default strategy. Shares of the oracle hold in every cell of [Cells], and in
// those of [KindCells] above the capacity; the other promises hold for Poisson arrivals with one
// SLO.
const (
	OfOracle   = 0.97 // share of the oracle's goodput
	OfKind     = 0.95 // ... for [Kinds]
	OfCapacity = 0.97 // share of the capacity, at 1.1 times the capacity and above
	// Misses beyond those of the best strategy, as a share of the offered rows, at loads of 0.5 and
	// 0.8.
	MoreMisses    = 0.005
	MedianLatency = 1.01 // times the median of sending at once, at a load of 0.5
)

// Broken returns the promises that the default strategy breaks in the cell, each with both
// figures.
func (o *Outcome) Broken() (all []string) {
	got := o.Strategies[0]
	if o.IsKind {
		if want := OfKind * o.Oracle.Share(); o.Load > 1 && got.Share() < want {
			all = append(all, fmt.Sprintf("%s: %.3f in time, want %.3f, which is %.2f of the oracle's %.3f",
				o.Cell, got.Share(), want, OfKind, o.Oracle.Share()))
		}
		return all
	}
	if want := OfOracle * o.Oracle.Share(); got.Share() < want {
		all = append(all, fmt.Sprintf("%s: %.3f in time, want %.3f, which is %.2f of the oracle's %.3f",
			o.Cell, got.Share(), want, OfOracle, o.Oracle.Share()))
	}
	if o.Bursts || o.Mixed {
		return all
	}
	if o.Load >= 1.1 && got.OfCapacity() < OfCapacity {
		all = append(all, fmt.Sprintf("%s: goodput is %.3f of the capacity, want %.2f",
			o.Cell, got.OfCapacity(), OfCapacity))
	}
	if o.Load == 0.5 || o.Load == 0.8 {
		least := o.AtOnce.Missed()
		for _, r := range o.Strategies {
			least = min(least, r.Missed())
		}
		if got.Missed() > least+MoreMisses {
			all = append(all,
				fmt.Sprintf("%s: %.4f missed, want at most %.4f, which is %.3f more than the best strategy",
					o.Cell, got.Missed(), least+MoreMisses, MoreMisses))
		}
	}
	if at := o.AtOnce.P50; o.Load == 0.5 && float64(got.P50) > MedianLatency*float64(at) {
		all = append(all, fmt.Sprintf("%s: p50 is %v, want at most %.2f of the %v of sending at once",
			o.Cell, got.P50, MedianLatency, at))
	}
	return all
}
