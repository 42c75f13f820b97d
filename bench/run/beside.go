package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

// An attack is made by hostile clients of one door alongside well-behaved clients of the Shiva
// door.
type attack struct {
	name string // of its part, and of its system
	door string // that it attacks: rest or grpc
	what string // in the report
	// begin starts the attack on the system; end stops it. under is the system, plus the attackers'
	// process if there is one, for the processor time. Programs are in bin.
	begin func(ctx context.Context, s *system, bin string) (under *system, end func(), err error)
}

const (
	besideLoad   = 200 // requests per second of the other clients
	besideWarmup = 500 * time.Millisecond

	// attackedConfig has a budget that an attack can fill.
	attackedBudget = 256 << 20
	attackedConfig = "[limits]\npayload_bytes = \"256MiB\"\nmessage_bytes = \"64MiB\"\n"
)

// beside measures the effect of an attack on the p50 of the other clients, and the server's peak
// memory. Turns with the attack alternate with turns beside a process that burns as much processor
// time.
func beside(ctx context.Context, o options, bin string, a attack) ([]ratio.Ratio, error) {
	r := ratio.Ratio{What: "p50 beside " + a.what + " / beside as much CPU burnt", Bound: ratio.AtMost, Limit: 2}
	memory := ratio.Ratio{What: "resident beside " + a.what + " / the budget", Bound: ratio.AtMost, Limit: 1.25}
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop", "bench/hostile"); err != nil {
		return nil, err
	}
	s, err := startSystem(ctx, o, a.name, bin, workloads)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	for round := range o.rounds {
		attacked, cost, err := attackedTurn(ctx, o, s, bin, a, uint64(round))
		if err != nil {
			return nil, err
		}
		burnt, err := burntTurn(ctx, o, s, bin, a, cost.Seconds()/(besideWarmup+o.duration).Seconds(), uint64(round))
		if err != nil {
			return nil, err
		}
		r.Rounds = append(r.Rounds, float64(attacked)/float64(burnt))
	}
	_, most, err := s.Group[0].Memory()
	memory.Rounds = []float64{float64(most) / attackedBudget}
	return []ratio.Ratio{r, memory}, err
}

// attackedTurn is a turn beside an attack that is under way, and the processor time that it took.
func attackedTurn(ctx context.Context, o options, s *system, bin string, a attack, seed uint64) (p50, cost time.Duration, err error) {
	under, end, err := a.begin(ctx, s, bin)
	if err != nil {
		return 0, 0, err
	}
	defer end()
	before, err := under.CPU() // without the cost of starting the attack
	if err != nil {
		return 0, 0, err
	}
	if p50, err = besideTurn(ctx, o, under, a.name+"/beside=attack", seed); err != nil {
		return 0, 0, err
	}
	after, err := under.CPU()
	return p50, after - before, err
}

// burntTurn is a turn beside a process that burns a share of the processors.
func burntTurn(ctx context.Context, o options, s *system, bin string, a attack, share float64, seed uint64) (p50 time.Duration, err error) {
	p, err := process.Start(bin, filepath.Join(bin, "hostile"), "-burn", strconv.FormatFloat(share, 'f', 4, 64))
	if err != nil {
		return 0, err
	}
	defer p.Stop()
	return besideTurn(ctx, o, s, fmt.Sprintf("%s/beside=burner-%.2f", a.name, share), seed)
}

// besideTurn returns the p50 of an open loop of few requests, all of which must be answered.
func besideTurn(ctx context.Context, o options, s *system, name string, seed uint64) (time.Duration, error) {
	w := workloads[single]
	got, err := s.offer(ctx, "Beside/attack="+name, load.Config{Frames: w.frames, Conns: w.conns, Rate: besideLoad, Seed: seed,
		Warmup: besideWarmup, Duration: o.duration})
	if err != nil {
		return 0, err
	}
	return got.Latency.Quantile(0.5), nil
}
