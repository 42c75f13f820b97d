package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

const (
	idleConns  = 10_000
	idleOthers = 1000            // connections of the load alongside
	idleRate   = 500             // requests per second of that load
	idleWatch  = 2 * time.Second // without any request
	idleLooks  = 5               // number of such periods
	idleRounds = 3               // for each round of other parts, like besideRounds
)

// besideIdle measures the cost of connections that have had an answer and stay open: memory, in a
// server that has been under load; processor time; and the p99 of other clients, against that at a
// server without idle connections. Both servers get their load at the same time, so that other work
// of the machine affects both. Turns after each other differed tenfold, and chance decided which
// server was slower.
func besideIdle(ctx context.Context, b *bench) (f findings, err error) {
	var both []*system // the first has the connections
	for range 2 {
		s, err := b.start(ctx, inGo, deep)
		if err != nil {
			return f, err
		}
		defer s.Stop()
		both = append(both, s)
		if _, err := b.idleTurn(ctx, s, false, 0); err != nil {
			return f, err
		}
	}
	crowded, empty := both[0], both[1]
	before, err := crowded.collected(ctx)
	if err != nil {
		return f, err
	}
	for i := range idleConns {
		// The server collects garbage 32 MiB at a time (cmd/shivad/memory.go), for any number of
		// connections. The garbage of opening 10,000 at once is not a cost of idle connections.
		if i%1000 == 0 {
			if err := crowded.collect(ctx); err != nil {
				return f, err
			}
		}
		c, err := asked(ctx, crowded.TCP, deep.frames()[0])
		if err != nil {
			return f, err
		}
		defer c.Close()
	}
	// Collect before the watch, so that the one collection does not count as a cost of idling.
	if _, err := crowded.collected(ctx); err != nil {
		return f, err
	}
	cpu := ratio.Ratio{What: fmt.Sprintf("per cent of a core for %d idle connections", idleConns), Bound: ratio.AtMost,
		Limit: 1}
	for range idleLooks {
		used, err := crowded.watched(ctx)
		if err != nil {
			return f, err
		}
		cpu.Rounds = append(cpu.Rounds, 100*used.Seconds()/idleWatch.Seconds())
	}
	after, err := crowded.collected(ctx)
	if err != nil {
		return f, err
	}
	p99 := ratio.Ratio{What: fmt.Sprintf("p99 of %d others beside %d idle connections / without them", idleOthers,
		idleConns), Bound: ratio.AtMost, Limit: 1.2}
	for round := range uint64(idleRounds * b.rounds) {
		var beside, alone time.Duration
		var failed [2]error
		var turn sync.WaitGroup
		turn.Go(func() { beside, failed[0] = b.idleTurn(ctx, crowded, true, 2*round) })
		turn.Go(func() { alone, failed[1] = b.idleTurn(ctx, empty, false, 2*round+1) })
		turn.Wait()
		if err := errors.Join(failed[:]...); err != nil {
			return f, err
		}
		p99.Rounds = append(p99.Rounds, float64(beside)/float64(alone))
	}
	f.ratios = []ratio.Ratio{
		{What: fmt.Sprintf("KiB of each of %d idle connections", idleConns), Bound: ratio.AtMost, Limit: 2,
			Rounds: []float64{float64(after-before) / 1024 / idleConns}},
		cpu,
		p99,
	}
	return f, nil
}

// watched returns the processor time that the server takes without any request. After a collection
// Go returns memory to the system for some seconds, at one per cent of a core: the median of
// several looks is the cost of idling.
func (s *system) watched(ctx context.Context) (time.Duration, error) {
	began, err := s.Group[0].CPU()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(idleWatch):
	}
	ended, err := s.Group[0].CPU()
	return ended - began, err
}

// asked returns a connection that has had an answer.
func asked(ctx context.Context, addr string, question []byte) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err = c.Write(question); err == nil {
		_, err = io.ReadAtLeast(c, make([]byte, 4096), 1)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("idle connections: %w", err)
	}
	return c, nil
}

// collected returns the server's resident memory after two garbage collections, the second of which
// empties its pools.
func (s *system) collected(ctx context.Context) (now int64, err error) {
	for range 2 {
		if err := s.collect(ctx); err != nil {
			return 0, err
		}
	}
	now, _, err = s.Group[0].Memory()
	return now, err
}

func (s *system) collect(ctx context.Context) error {
	return s.Get(ctx, "/debug/pprof/heap?gc=1", io.Discard)
}

// idleTurn returns the p99 of an open loop on idleOthers connections.
func (b *bench) idleTurn(ctx context.Context, s *system, beside bool, seed uint64) (time.Duration, error) {
	c := deep.open(idleRate, seed)
	c.Conns, c.Duration = idleOthers, 5*b.duration
	got, err := s.offer(ctx, fmt.Sprintf("Idle/beside=%t", beside), c)
	if err != nil {
		return 0, err
	}
	return got.Latency.Quantile(0.99), nil
}
