package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

const (
	crawled  = "handshakes" // the system
	crawlers = 1000         // of each kind
	// crawlMemory is the allowed growth of the server's memory, in MiB: 64 KiB for each slow
	// client, for its session, its goroutine and its TLS state, and for each of the 256 unfinished
	// handshakes that the server admits (tls.handshakes); and as much again for garbage.
	crawlMemory = 2 * (crawlers + 256) * 64 >> 10
)

// besideHandshakes measures the effect of a thousand clients that do not finish their handshakes,
// and of a thousand that send a byte a second, on other clients of the TCP door over TLS, and on
// the server's memory.
func besideHandshakes(ctx context.Context, o options, bin string) ([]ratio.Ratio, error) {
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop", "bench/hostile"); err != nil {
		return nil, err
	}
	w := workloads[deep]
	s, err := startSystem(ctx, o, crawled, bin, []*workload{w})
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	e := effect{name: crawled}
	c := load.Config{Addr: s.addr, Frames: w.frames, Conns: w.conns, Check: load.SameTensors}
	at, err := s.metrics(ctx, residentBytes, unfinishedEnded)
	if err != nil {
		return nil, err
	}
	least, most := at[0], at[0]
	attacked := func() error {
		now, err := s.metrics(ctx, residentBytes, unfinishedEnded, openOfTCP)
		if err != nil {
			return err
		}
		most = max(most, now[0])
		if now[1] <= at[1] || now[2] < crawlers {
			return fmt.Errorf("run: %s: %v handshakes were given up and %v clients are there, expected some and %d", crawled, now[1]-at[1], now[2], crawlers)
		}
		at = now
		return nil
	}
	for range effectRounds * o.rounds {
		more, err := e.round(ctx, o, s, bin, c, nil, []guest{crawl(ctx, s, bin)}, attacked)
		if err == nil {
			err = e.burn(ctx, o, s, bin, c, nil, more)
		}
		if err != nil {
			return nil, err
		}
	}
	grown := ratio.Ratio{What: fmt.Sprintf("MiB that the server grows by beside %d of each", crawlers), Bound: ratio.AtMost, Limit: crawlMemory, Rounds: []float64{(most - least) / (1 << 20)}}
	return append(e.ratios("unfinished handshakes and slow clients of TLS", 1.5, 0), grown), nil
}

// Names of the server's metrics.
const (
	residentBytes   = "process_resident_memory_bytes"
	unfinishedEnded = `shivad_connections_closed_total{door="tcp",reason="handshake"}`
	openOfTCP       = `shivad_connections{door="tcp"}`
)

// crawl starts the clients.
func crawl(ctx context.Context, s *system, bin string) guest {
	return func() (*process.Process, error) {
		return attackers(ctx, bin, "-crawl", s.addr, "-crawlers", strconv.Itoa(crawlers))
	}
}
