package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
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
// other clients, until the server has closed them, by default after ten seconds. Turns with and
// without them alternate, every other round in reverse order. Turns are long, so there are few.
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
	if err := s.answers(ctx, question); err != nil {
		return r, err
	}
	order := []bool{false, true}
	for round := range max(1, o.rounds/3) {
		p99 := map[bool]float64{}
		for _, with := range order {
			if p99[with], err = unreadTurn(ctx, s, question, with, uint64(round)); err != nil {
				return r, err
			}
		}
		r.Rounds = append(r.Rounds, p99[true]/p99[false])
		slices.Reverse(order)
	}
	return r, nil
}

// answers waits until the server answers a request.
func (s *system) answers(ctx context.Context, question []byte) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		got, err := load.Run(ctx, load.Config{Addr: s.addr, Frames: [][]byte{question}, Duration: 5 * time.Millisecond})
		if err == nil && got.Latency.Count() > 0 {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("no answer: %s", got.Failure)
		}
		if gone := errors.Join(s.Alive(), ctx.Err()); gone != nil || time.Now().After(end) {
			return errors.Join(fmt.Errorf("run: %s: %w", s.name, err), gone)
		}
	}
}

// unreadTurn returns the p99 of an open loop, with or without clients that read nothing: the
// median over its seconds, since other work of the machine comes in bursts. It fails unless by
// its end the server has closed all of those clients for not reading.
func unreadTurn(ctx context.Context, s *system, question []byte, with bool, seed uint64) (float64, error) {
	before, err := s.metrics(ctx, closedUnread)
	if err != nil {
		return 0, err
	}
	want := 0
	if with {
		for range unread {
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
		want = unread
	}
	w := workloads[deep]
	var p99 []float64
	for i := range uint64(unreadTurns) {
		c := load.Config{Addr: s.addr, Frames: w.frames, Conns: w.conns, Rate: unreadRate, Seed: seed*unreadTurns + i, Check: load.SameTensors}
		if i == 0 {
			c.Warmup = unreadFill
		}
		got, err := load.Run(ctx, c)
		if err := errors.Join(err, s.Alive()); err != nil {
			return 0, err
		}
		fmt.Print(got.Line(fmt.Sprintf("Unread/beside=%t", with)))
		if got.Failed > 0 || got.Lost > 0 || got.Answered == 0 {
			return 0, fmt.Errorf("run: beside clients that read nothing: %d answered, %d failed, %d lost: %s", got.Answered, got.Failed, got.Lost, got.Failure)
		}
		p99 = append(p99, float64(got.Latency.Quantile(0.99)))
	}
	after, err := s.metrics(ctx, closedUnread)
	if err != nil {
		return 0, err
	}
	if n := int(after[0] - before[0]); n != want {
		err = fmt.Errorf("run: %d clients were closed for reading nothing by the end of a turn, expected %d", n, want)
	}
	return ratio.Median(p99), err
}
