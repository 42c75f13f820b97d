package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

const (
	bombs      = 24
	bombBytes  = 250_000_000 / bombs // that each unpacks to
	bombsEvery = 500 * time.Millisecond
	bombsLoad  = 200 // requests of the others in a second
)

// besideBombs measures what clients of the HTTP door, whose bodies of a few kilobytes unpack to 250 MB together and do not end, do to
// the p50 of requests over Shiva: turns with them, and with processes that burn as much processor time, alternate.
func besideBombs(ctx context.Context, o options, bin string) (r ratio, err error) {
	r = ratio{what: "p50 beside unfinished gzip bodies / beside as much CPU burnt", bound: atMost, limit: 2}
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop"); err != nil {
		return r, err
	}
	bomb, err := unfinished(bombBytes)
	if err != nil {
		return r, err
	}
	s, err := startSystem(ctx, "bombs", bin, o.python, o.echoLoops)
	if err != nil {
		return r, err
	}
	defer s.stop()
	for round := range o.rounds {
		before, err := s.cpu()
		if err != nil {
			return r, err
		}
		thrown, stop := context.WithCancel(ctx)
		var clients sync.WaitGroup
		for range bombs {
			clients.Go(func() { throw(thrown, s.rest, bomb) })
		}
		attacked, err := bombsTurn(ctx, o, s, "bombs", uint64(round))
		stop()
		clients.Wait()
		if err != nil {
			return r, err
		}
		after, err := s.cpu()
		if err != nil {
			return r, err
		}
		burners := max(1, int(math.Round((after-before).Seconds()/(bombsWarmup+o.duration).Seconds())))
		burnt, err := burning(burners, bin, func() (time.Duration, error) {
			return bombsTurn(ctx, o, s, fmt.Sprint("burners=", burners), uint64(round))
		})
		if err != nil {
			return r, err
		}
		r.rounds = append(r.rounds, float64(attacked)/float64(burnt))
	}
	return r, nil
}

const bombsWarmup = 500 * time.Millisecond

// bombsTurn is the p50 of an open loop of few requests, all of which are answered.
func bombsTurn(ctx context.Context, o options, s *system, beside string, seed uint64) (time.Duration, error) {
	w := workloads[single]
	got, err := load.Run(ctx, load.Config{Addr: s.addr, Frames: w.frames, Conns: w.conns, Rate: bombsLoad, Seed: seed,
		Warmup: bombsWarmup, Duration: o.duration, Check: load.SameTensors})
	if err := errors.Join(err, s.alive()); err != nil {
		return 0, err
	}
	fmt.Print(got.Line("Bombs/beside=" + beside))
	if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
		return 0, fmt.Errorf("run: beside %s: %d answered, %d failed, %d lost: %s", beside, got.Answered, got.Failed, got.Lost, got.Failure)
	}
	return got.Latency.Quantile(0.5), nil
}

// unfinished is a request whose gzip body has unpacked to n bytes and has not ended.
func unfinished(n int) ([]byte, error) {
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	if _, err := w.Write(bytes.Repeat([]byte(" "), n)); err != nil {
		return nil, err
	}
	if err := w.Flush(); err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, "POST /v2/models/small/infer HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", body.Len(), body.Bytes()), nil
}

// throw sends such a request again and again on new connections, until ctx ends.
func throw(ctx context.Context, addr string, bomb []byte) {
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return
		}
		_, _ = c.Write(bomb) // the server may have hung up
		select {
		case <-ctx.Done():
		case <-time.After(bombsEvery):
		}
		c.Close()
	}
}

// burning measures beside n processes that do nothing but burn processor time.
func burning(n int, bin string, measure func() (time.Duration, error)) (time.Duration, error) {
	var all []*process.Process
	defer func() {
		for _, p := range slices.Backward(all) {
			p.Kill()
		}
	}()
	for range n {
		p, err := process.Start(bin, "sh", "-c", "while :; do :; done")
		if err != nil {
			return 0, err
		}
		all = append(all, p)
	}
	return measure()
}
