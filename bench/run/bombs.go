package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/shivad/shivad/bench/internal/hostile"
)

const (
	bombs      = 24
	bombBytes  = 250_000_000 / bombs // unpacked size of each
	bombsEvery = 500 * time.Millisecond
)

// bombsFrom is an attack by clients of the HTTP door, from many addresses, whose bodies of a few
// kilobytes unpack to 250 MB in total and never end.
func bombsFrom(many int) attack {
	return attack{
		name: "bombs", door: "rest", what: "unfinished gzip bodies",
		begin: func(ctx context.Context, s *system, _ string) (*system, func(), error) {
			bomb, err := unfinished(bombBytes)
			if err != nil {
				return nil, nil, err
			}
			ctx, stop := context.WithCancel(ctx)
			from := &hostile.Sources{Many: many}
			var clients sync.WaitGroup
			for range bombs {
				clients.Go(func() { throw(ctx, from, s.rest, bomb) })
			}
			return s, func() { stop(); clients.Wait() }, nil
		},
	}.spread(many)
}

// unfinished is a request whose gzip body unpacks to n bytes so far and does not end.
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

// throw keeps sending bomb on new connections until ctx ends.
func throw(ctx context.Context, from *hostile.Sources, addr string, bomb []byte) {
	for ctx.Err() == nil {
		c, err := from.Dial(ctx, addr)
		if err != nil {
			return
		}
		_, _ = c.Write(bomb) // the server may have closed the connection
		select {
		case <-ctx.Done():
		case <-time.After(bombsEvery):
		}
		c.Close()
	}
}
