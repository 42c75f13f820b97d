package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/hostile"
	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	// hostileRate is the number of peers of each kind per second, and hostileLoad the number of the
	// other clients' requests per second: together about a third of two cores. A higher load would
	// measure the kernel's scheduler.
	hostileRate   = "5"
	hostileLoad   = 1000
	hostileRounds = 4 // for each round of other parts, like effectRounds
	// hostileConfig ends unregistered connections early, within a turn.
	hostileConfig = "[containers]\nhandshake_timeout = \"400ms\"\n"
)

// besideHostile measures the effect of hostile peers at the containers' address on the p99 of
// requests to a well-behaved container. Turns with and without peers alternate, every other round
// in reverse order. It fails if a peer is missing in the server's log.
func besideHostile(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "p99 beside hostile containers / without them", Bound: ratio.AtMost, Limit: 1.2}
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop", "bench/hostile"); err != nil {
		return r, err
	}
	s, err := startSystem(ctx, o, "hostile", bin, workloads)
	if err != nil {
		return r, err
	}
	defer s.Stop()
	order := []bool{false, true}
	for round := range hostileRounds * o.rounds {
		p99 := map[bool]time.Duration{}
		for _, beside := range order {
			if p99[beside], err = hostileTurn(ctx, o, s, bin, beside, uint64(round)); err != nil {
				return r, err
			}
		}
		r.Rounds = append(r.Rounds, float64(p99[true])/float64(p99[false]))
		slices.Reverse(order)
	}
	return r, named(s.Group[0].Output())
}

// hostileTurn returns the p99 of an open loop, with or without hostile peers.
func hostileTurn(ctx context.Context, o options, s *system, bin string, beside bool, seed uint64) (time.Duration, error) {
	if beside {
		p, err := process.Start(bin, filepath.Join(bin, "hostile"), "-containers", s.containers, "-clients", s.addr, "-rate", hostileRate)
		if err != nil {
			return 0, err
		}
		defer p.Stop()
		peers := *s
		peers.Group = append(slices.Clone(s.Group), p)
		s = &peers
	}
	w := workloads[deep]
	got, err := load.Run(ctx, load.Config{Addr: s.addr, Frames: w.frames, Conns: w.conns, Rate: hostileLoad, Seed: seed,
		Warmup: 500 * time.Millisecond, Duration: o.duration, Piece: p99Piece, Check: load.SameTensors})
	if err := errors.Join(err, s.Alive()); err != nil {
		return 0, err
	}
	fmt.Print(got.Line(fmt.Sprintf("Hostile/beside=%t", beside)))
	if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
		return 0, fmt.Errorf("run: beside hostile containers: %d answered, %d failed, %d lost: %s", got.Answered, got.Failed, got.Lost, got.Failure)
	}
	return p99Of(got), nil
}

var sessionOf = regexp.MustCompile(` session=\d+ `)

// named returns an error that lists the hostile peers that the log lacks, or has twice for one
// connection.
func named(log string) error {
	var faults []error
	for _, p := range hostile.Peers() {
		seen := map[string]bool{}
		for line := range strings.Lines(log) {
			if slices.ContainsFunc(p.Words, func(word string) bool { return !strings.Contains(line, word) }) {
				continue
			}
			session := sessionOf.FindString(line)
			if seen[session] {
				faults = append(faults, fmt.Errorf("run: hostile peer %s is named twice in the log, for%s", p.Name, session))
			}
			seen[session] = true
		}
		if len(seen) == 0 {
			faults = append(faults, fmt.Errorf("run: hostile peer %s is not named in the log: no line with %q", p.Name, p.Words))
		}
	}
	return errors.Join(faults...)
}
