package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// followed is the system that follows one of a hundred requests.
const followed = "traced"

// traced measures what it costs the Shiva door to follow one of a hundred requests, with the way
// to a collector that takes all spans and keeps none: the rate of small requests to that without,
// two servers that take turns.
func traced(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "traces of 1 % / off: rate, " + workloads[deep].name, Bound: ratio.AtLeast, Limit: 0.99}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	var spans atomic.Int64 // bytes of them
	collector := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		n, _ := io.Copy(io.Discard, q.Body)
		spans.Add(n)
	})}
	go func() { _ = collector.Serve(l) }() // until Close
	defer collector.Close()

	configurations[followed] = fmt.Sprintf("[traces]\nendpoint = \"http://%s\"\none_in = 100\n", l.Addr())
	o.rounds *= 4 // single ones differ by more than what is looked for
	all, err := systems(ctx, o, bin, []string{"go", followed}, workloads[deep:deep+1])
	if err != nil {
		return r, err
	}
	if spans.Load() == 0 {
		return r, errors.New("run: traced: the collector got no span")
	}
	for round, with := range all[followed][0] {
		r.Rounds = append(r.Rounds, with.rate/all["go"][0][round].rate)
	}
	return r, nil
}
