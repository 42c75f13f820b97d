package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	unread      = 20          // clients of the Shiva door that read nothing
	unreadEach  = 200         // requests of each, with answers of a mebibyte: 4 GiB in total
	unreadFill  = time.Second // until their buffers are full; clients that read suffer meanwhile
	unreadTurns = 12          // measured seconds after that: clients stall, and are closed
	unreadRate  = 1000        // requests per second of the other clients
	wide        = "wide"      // the unread clients' model, in a container of its own

	closedUnread = `shivad_connections_closed_total{door="tcp",reason="stalled"}`
)

// besideUnread measures the effect of clients that request much and read no answers on the p99 of
// other clients, until the server has closed them, by default after ten seconds. Turns are long, so
// there are few.
func besideUnread(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "p99 beside clients that read nothing / without them", Bound: ratio.AtMost, Limit: 1.2}
	if err := process.Build(ctx, bin, "cmd/shivad", "bench/noop"); err != nil {
		return r, err
	}
	s, err := startSystem(ctx, o, "unread", bin, workloads)
	if err != nil {
		return r, err
	}
	defer s.Stop()
	if err := s.Start(bin, filepath.Join(bin, "noop"), "-servers", s.containers, "-wide", wide); err != nil {
		return r, err
	}
	x, err := tensor.FromSlice(tensor.Shape{}, []float32{1})
	if err != nil {
		return r, err
	}
	question, err := shiva.AppendMessage(nil, &shiva.Message{Namespace: wide, Tensors: []tensor.Tensor{x}})
	if err != nil {
		return r, err
	}
	if err := s.answers(ctx, load.Config{Frames: [][]byte{question}}); err != nil {
		return r, err
	}
	r.Rounds, err = contrast(max(1, o.rounds/3),
		func(round uint64) (float64, error) { return unreadTurn(ctx, s, question, unread, round) },
		func(round uint64) (float64, error) { return unreadTurn(ctx, s, question, 0, round) })
	return r, err
}

// unreadTurn returns the p99 of an open loop beside so many clients that read nothing: the median
// over its seconds, since other work of the machine comes in bursts. It fails unless by
// its end the server has closed all of those clients for not reading.
func unreadTurn(ctx context.Context, s *system, question []byte, many int, seed uint64) (float64, error) {
	before, err := s.metrics(ctx, closedUnread)
	if err != nil {
		return 0, err
	}
	for range many {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", s.addr)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // otherwise the kernel buffers more
		if _, err := c.Write(bytes.Repeat(question, unreadEach)); err != nil {
			return 0, err
		}
	}
	w := workloads[deep]
	var p99 []float64
	for i := range uint64(unreadTurns) {
		c := load.Config{Frames: w.frames, Conns: w.conns, Rate: unreadRate, Seed: seed*unreadTurns + i}
		if i == 0 {
			c.Warmup = unreadFill
		}
		got, err := s.offer(ctx, fmt.Sprintf("Unread/beside=%d", many), c)
		if err != nil {
			return 0, err
		}
		p99 = append(p99, float64(got.Latency.Quantile(0.99)))
	}
	after, err := s.metrics(ctx, closedUnread)
	if err != nil {
		return 0, err
	}
	if n := int(after[0] - before[0]); n != many {
		err = fmt.Errorf("run: %d clients were closed for reading nothing by the end of a turn, expected %d", n, many)
	}
	return ratio.Median(p99), err
}
