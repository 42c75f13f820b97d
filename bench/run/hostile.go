package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/shivad/shivad/bench/internal/hostile"
	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
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
// requests to a well-behaved container. It fails if a peer is missing in the server's log.
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
	turn := func(s *system, name string, seed uint64) (float64, error) {
		got, err := s.offer(ctx, "Hostile/beside="+name, openLoop(o, hostileLoad, seed))
		if err != nil {
			return 0, err
		}
		return float64(p99Of(got)), nil
	}
	r.Rounds, err = contrast(hostileRounds*o.rounds, func(round uint64) (float64, error) {
		p, err := process.Start(bin, filepath.Join(bin, "hostile"), "-containers", s.containers, "-clients", s.addr, "-rate", hostileRate)
		if err != nil {
			return 0, err
		}
		defer p.Stop()
		peers := *s
		peers.Group = append(slices.Clone(s.Group), p)
		return turn(&peers, "true", round)
	}, func(round uint64) (float64, error) { return turn(s, "false", round) })
	if err != nil {
		return r, err
	}
	return r, named(s.Group[0].Output())
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
