package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	// effectLoad is the number of requests per second of the measured clients. Twice as many would
	// leave REST and gRPC little of two cores.
	effectLoad = 1000
	// effectRounds is the number of rounds here for each round of other parts: a p99 differs more
	// from turn to turn than a rate.
	effectRounds = 4
	// p99Piece is the length of the pieces of a turn that have a p99 of their own (see p99Of). A
	// piece has a hundred requests, and a share of the attack, which goes on all the time.
	p99Piece = 100 * time.Millisecond
)

// p99Of is the median of the p99 of the pieces of a turn. Where a virtual machine stands still for
// some milliseconds once or twice a second, that decides the p99 of whole turns: equal turns differ
// up to tenfold, and the medians of 27 of them by a third. Only a few of the pieces are affected.
func p99Of(r *load.Result) time.Duration {
	var all []float64
	for i := range r.Pieces {
		all = append(all, float64(r.Pieces[i].Quantile(0.99)))
	}
	return time.Duration(ratio.Median(all))
}

// An effect is the p99 of clients of a door in the turns of each round: beside the usual processes,
// beside an attack, and, where that is of interest, beside the usual processes and one that burns
// the additional processor time of the attack, its own and the server's. The loss to that process
// is the loss to any work of that size.
type effect struct {
	name                   string // of the door and the attack, in the lines for benchstat
	usual, attacked, burnt []effectTurn
}

// A guest starts a process beside the clients that are measured.
type guest func() (*process.Process, error)

// round takes the first two turns, and returns how many processors more the second took. It calls
// attacked at the end of the second, before the guests end, to check that the attack took place.
func (e *effect) round(ctx context.Context, o options, s *system, bin string, c load.Config, usual, attack []guest, attacked func() error) (more float64, err error) {
	c.Seed = uint64(len(e.usual)) // the same arrivals in all turns
	var shares [2]float64         // of processors, usually and beside the attack
	turns := []int{0, 1}
	if len(e.usual)%2 > 0 {
		slices.Reverse(turns)
	}
	for _, turn := range turns {
		name, guests, over := "/beside=usual", usual, func() error { return nil }
		if turn == 1 {
			name, guests, over = "/beside=attack", attack, attacked
		}
		got, err := s.besides(ctx, o, c, e.name+name, guests, over)
		if err != nil {
			return 0, err
		}
		shares[turn] = got.all
		if turn == 0 {
			e.usual = append(e.usual, got)
		} else {
			e.attacked = append(e.attacked, got)
		}
	}
	return shares[1] - shares[0], nil
}

// burn takes the third turn of a round, in which a process burns that many processors.
func (e *effect) burn(ctx context.Context, o options, s *system, bin string, c load.Config, usual []guest, more float64) error {
	c.Seed = uint64(len(e.burnt))
	beside := usual
	if more > 0 {
		beside = append(slices.Clone(usual), func() (*process.Process, error) {
			return process.Start(bin, filepath.Join(bin, "hostile"), "-burn", strconv.FormatFloat(more, 'f', 4, 64))
		})
	}
	got, err := s.besides(ctx, o, c, fmt.Sprintf("%s/beside=burner-%.2f", e.name, more), beside, func() error { return nil })
	e.burnt = append(e.burnt, got)
	return err
}

// An effectTurn is the p99 of an open loop beside guests, of its pieces and as a whole, and the
// number of processors that the server and the guests took meanwhile, and the server alone.
type effectTurn struct {
	p99, whole  time.Duration
	all, server float64
}

// besides takes a turn beside guests. It calls over at the end, before the guests end.
func (s *system) besides(ctx context.Context, o options, c load.Config, name string, guests []guest, over func() error) (turn effectTurn, err error) {
	under := *s
	under.Group = slices.Clone(s.Group)
	for _, g := range guests {
		p, err := g()
		if err != nil {
			return turn, err
		}
		defer p.Kill()
		under.Group = append(under.Group, p)
	}
	c.TLS, c.Rate, c.Warmup, c.Duration, c.Piece = s.tls, effectLoad, besideWarmup, o.duration, p99Piece
	server, err := s.CPU()
	if err != nil {
		return turn, err
	}
	before, err := under.CPU()
	if err != nil {
		return turn, err
	}
	began := time.Now()
	got, err := under.offer(ctx, "Effect/"+name, c)
	if err != nil {
		return turn, err
	}
	took := time.Since(began).Seconds()
	after, err := under.CPU()
	if err != nil {
		return turn, err
	}
	now, err := s.CPU()
	if err != nil {
		return turn, err
	}
	return effectTurn{p99Of(got), got.Latency.Quantile(0.99), (after - before).Seconds() / took, (now - server).Seconds() / took}, over()
}

// ratios compares the turns of each round, as far as they were taken. A ratio of pieces is held to
// its limit if that is above 0; ratios of whole turns are only reported.
func (e *effect) ratios(attack string, toUsual, toBurnt float64) []ratio.Ratio {
	of := func(what string, beside []effectTurn, limit float64) []ratio.Ratio {
		r := ratio.Ratio{What: fmt.Sprintf("p99 beside %s / %s", attack, what)}
		if limit > 0 {
			r.Bound, r.Limit = ratio.AtMost, limit
		}
		whole := ratio.Ratio{What: "the same of whole turns"}
		for round, turn := range beside {
			r.Rounds = append(r.Rounds, float64(e.attacked[round].p99)/float64(turn.p99))
			whole.Rounds = append(whole.Rounds, float64(e.attacked[round].whole)/float64(turn.whole))
		}
		return []ratio.Ratio{r, whole}
	}
	rs := of("without it", e.usual, toUsual)
	if e.burnt != nil || toBurnt > 0 {
		rs = append(rs, of("beside as much CPU burnt", e.burnt, toBurnt)...)
	}
	return rs
}
