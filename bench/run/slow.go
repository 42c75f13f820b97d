package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

const (
	slowClients = 5000
	slowTimeout = 5 * time.Second // of the server, for their messages
	slowLate    = time.Second     // tolerance of the time of the close, early or late
	slowNew     = 20 * time.Millisecond
	slowConfig  = "[tcp]\nmessage_timeout = \"5s\"\n[rest]\nmessage_timeout = \"5s\"\nheader_timeout = \"5s\"\n"
)

// besideSlow makes clients send a byte each second, in the header or the tensor of a Shiva message,
// or in the head or the body of an HTTP request. It measures when the server closes them, and how
// long new clients wait for an answer meanwhile.
func besideSlow(ctx context.Context, b *bench) (f findings, err error) {
	s, err := b.start(ctx, setup{name: "slow", config: slowConfig, v2: true}, deep)
	if err != nil {
		return f, err
	}
	defer s.Stop()
	question := deep.frames()[0]
	const head = "POST /v2/models/small/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
	type kind struct {
		addr        string
		first, rest []byte
	}
	tensor := kind{s.TCP, question[:len(question)-60], question[len(question)-60:]}
	// Two in five are at the HTTP door, which may take an eighth of the server's descriptors.
	kinds := []kind{{s.TCP, nil, question}, tensor, {s.REST, nil, []byte(head)}, tensor,
		{s.REST, []byte(head), make([]byte, 1000)}}
	took := make([]time.Duration, slowClients) // from the first byte to the end
	faults := make([]error, slowClients)
	var all sync.WaitGroup
	for i := range slowClients {
		k := kinds[i%len(kinds)]
		c, err := new(net.Dialer).DialContext(ctx, "tcp", k.addr)
		if err != nil {
			return f, err
		}
		defer c.Close()
		all.Go(func() { took[i], faults[i] = trickle(c, k.first, k.rest) })
	}
	ended := make(chan struct{})
	go func() { // joined by the loop below
		all.Wait()
		close(ended)
	}()
	var waited []time.Duration
	for {
		select {
		case <-ended:
			if i := slices.IndexFunc(faults, func(err error) bool { return err != nil }); i >= 0 {
				return f, faults[i]
			}
			if err := s.Alive(); err != nil {
				return f, err
			}
			return findings{ratios: slowRatios(took, waited)}, nil
		case <-ctx.Done():
			return f, ctx.Err()
		case <-time.After(slowNew):
			began := time.Now()
			c, err := asked(ctx, s.TCP, question)
			if err != nil {
				return f, err
			}
			waited = append(waited, time.Since(began))
			c.Close()
		}
	}
}

// trickle sends some bytes, and then one each second, until the server closes the connection. It
// returns how long that took, from the first byte on.
func trickle(c net.Conn, first, rest []byte) (time.Duration, error) {
	if _, err := c.Write(append(slices.Clone(first), rest[0])); err != nil {
		return 0, err
	}
	began := time.Now()
	answer := make([]byte, 4096)
	for i := 1; ; {
		_ = c.SetReadDeadline(began.Add(time.Duration(i) * time.Second))
		_, err := c.Read(answer)
		switch late, ok := errors.AsType[net.Error](err); {
		case err == nil: // the server's reason
		case !ok || !late.Timeout():
			return time.Since(began), nil
		case time.Since(began) > 4*slowTimeout || i == len(rest):
			return 0, fmt.Errorf("slow clients are not closed: one has been sending for %v, with a timeout of %v",
				time.Since(began), slowTimeout)
		default:
			_, _ = c.Write(rest[i : i+1]) // the read above notices a closed connection
			i++
		}
	}
}

// slowRatios holds the ends of slow clients, and the waits of others, to their limits.
func slowRatios(took, waited []time.Duration) []ratio.Ratio {
	slices.Sort(took)
	slices.Sort(waited)
	beyond := func(d time.Duration) []float64 { return []float64{(d - slowTimeout).Seconds()} }
	p99 := waited[len(waited)*99/100]
	return []ratio.Ratio{
		{What: fmt.Sprintf("seconds from the timeout to the end of the first of %d slow clients", len(took)),
			Bound: ratio.AtLeast, Limit: -slowLate.Seconds(), Rounds: beyond(took[0])},
		{What: fmt.Sprintf("seconds from the timeout to the end of the last of %d slow clients", len(took)),
			Bound: ratio.AtMost, Limit: slowLate.Seconds(), Rounds: beyond(took[len(took)-1])},
		{What: fmt.Sprintf("ms to connect and be answered beside them, p99 of %d", len(waited)), Bound: ratio.AtMost,
			Limit: 100, Rounds: []float64{p99.Seconds() * 1e3}},
		{What: "the same, longest", Rounds: []float64{waited[len(waited)-1].Seconds() * 1e3}},
	}
}
