package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/bench/load"
)

// contrast takes a turn with something and one without it in each round, every other round in
// reverse order, and returns the ratios of what they measure.
func contrast(rounds int, with, without func(round uint64) (float64, error)) (ratios []float64, err error) {
	order := []bool{false, true}
	for round := range uint64(rounds) {
		got := map[bool]float64{}
		for _, beside := range order {
			measure := without
			if beside {
				measure = with
			}
			if got[beside], err = measure(round); err != nil {
				return ratios, err
			}
		}
		ratios = append(ratios, got[true]/got[false])
		slices.Reverse(order)
	}
	return ratios, nil
}

// offer offers a load to a system, at its door for Shiva unless the load names another one. All
// requests must be answered, and correctly. The result is printed for benchstat by its name.
func (s *system) offer(ctx context.Context, name string, c load.Config) (*load.Result, error) {
	if c.Addr == "" {
		c.Addr, c.TLS = s.addr, s.tls
	}
	if c.Check == nil {
		c.Check = load.SameTensors
	}
	got, err := load.Run(ctx, c)
	if err := errors.Join(err, s.Alive()); err != nil {
		return nil, err
	}
	fmt.Print(got.Line(name))
	if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
		return nil, fmt.Errorf("run: %s: %d answered, %d failed, %d lost: %s", name, got.Answered, got.Failed, got.Lost, got.Failure)
	}
	return got, nil
}

// openLoop is a load of so many requests per second of the clients of the deepest workload.
func openLoop(o options, rate float64, seed uint64) load.Config {
	w := workloads[deep]
	return load.Config{Frames: w.frames, Conns: w.conns, Rate: rate, Seed: seed, Warmup: besideWarmup, Duration: o.duration, Piece: p99Piece}
}

// launch starts programs, each a command line of one in bin, and returns when a first request of c
// is answered.
func (s *system) launch(ctx context.Context, bin string, c load.Config, commands ...[]string) error {
	for _, command := range commands {
		if err := s.Start(bin, command[0], command[1:]...); err != nil {
			s.Stop()
			return fmt.Errorf("run: %s: %w", s.name, err)
		}
	}
	if err := s.answers(ctx, c); err != nil {
		s.Stop()
		return err
	}
	return nil
}

// answers returns when a request of c is answered.
func (s *system) answers(ctx context.Context, c load.Config) error {
	if c.Addr == "" {
		c.Addr, c.TLS = s.addr, s.tls
	}
	c.Frames, c.Conns, c.InFlight, c.Warmup, c.Duration = c.Frames[:1], 1, 1, 0, 5*time.Millisecond
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got, err := load.Run(ctx, c)
		if err == nil && got.Latency.Count() > 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("no answer: %s", got.Failure)
		}
		if gone := errors.Join(s.Alive(), ctx.Err()); gone != nil || time.Now().After(end) {
			return errors.Join(fmt.Errorf("run: %s does not answer: %w\n%s", s.name, err, s.Output()), gone)
		}
	}
}
