package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	besideWarmup = 500 * time.Millisecond
	// besideLoad is the number of requests per second of the clients that are measured beside
	// something: a third of two cores. A higher load would measure the kernel's scheduler.
	besideLoad = 1000
	// besideRounds is the number of rounds of a p99 for each round of other parts, as it differs
	// more from turn to turn than a rate.
	besideRounds = 4
	// p99Piece is the length of the pieces of a turn that have a p99 of their own (see p99Of).
	p99Piece = 100 * time.Millisecond
)

// p99Of is the median of the p99 of the pieces of a turn. Where a virtual machine stands still for
// some milliseconds once or twice a second, that decides the p99 of whole turns: equal turns differ
// up to tenfold, and the medians of 27 of them by a third. Only a few of the pieces are affected.
func p99Of(r *load.Result) float64 {
	var all []float64
	for i := range r.Pieces {
		all = append(all, float64(r.Pieces[i].Quantile(0.99)))
	}
	return ratio.Median(all)
}

// A figure measures something in a turn of a round.
type figure func(round uint64) (float64, error)

// contrast completes a ratio: in each round it takes a turn with something and one without it,
// every other round in reverse order.
func contrast(r ratio.Ratio, rounds int, with, without figure) (ratio.Ratio, error) {
	order := []bool{true, false}
	for round := range uint64(rounds) {
		got := map[bool]float64{}
		for _, beside := range order {
			measure := without
			if beside {
				measure = with
			}
			var err error
			if got[beside], err = measure(round); err != nil {
				return r, err
			}
		}
		r.Rounds = append(r.Rounds, got[true]/got[false])
		slices.Reverse(order)
	}
	return r, nil
}

// tail is the p99 of an open loop.
func (b *bench) tail(ctx context.Context, s *system, name string) figure {
	return func(round uint64) (float64, error) {
		c := deep.open(besideLoad, round)
		c.Duration = b.duration
		got, err := s.offer(ctx, name, c)
		if err != nil {
			return 0, err
		}
		return p99Of(got), nil
	}
}

// beside is a figure that is taken beside another program, which runs meanwhile. over is called
// before that ends, to check that it did what it should; nil: it is not checked.
func beside(start func() (*process.Process, error), f figure, over func() error) figure {
	return func(round uint64) (float64, error) {
		p, err := start()
		if err != nil {
			return 0, err
		}
		defer p.Stop()
		v, err := f(round)
		if err == nil && over != nil {
			err = over()
		}
		return v, err
	}
}

// hostile starts bench/hostile.
func (b *bench) hostile(args ...string) (*process.Process, error) {
	return process.Start(b.bin, filepath.Join(b.bin, "hostile"), args...)
}

// attackers starts bench/hostile, and returns when all of its clients are ready.
func (b *bench) attackers(ctx context.Context, args ...string) (*process.Process, error) {
	p, err := b.hostile(args...)
	if err != nil {
		return nil, err
	}
	err = process.Group{p}.Await(ctx, time.Minute, func() error {
		if !strings.Contains(p.Output(), "ready") {
			return fmt.Errorf("the clients of %q are not there", args)
		}
		return nil
	})
	if err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

// burner starts a process that takes a share of the processors.
func (b *bench) burner(share float64) (*process.Process, error) {
	return b.hostile("-burn", strconv.FormatFloat(max(share, 0.0001), 'f', 4, 64))
}
