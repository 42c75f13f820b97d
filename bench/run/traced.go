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

// tracedRounds is the number of rounds for each of other parts, with turns of a quarter of theirs.
// Single ones differ by more than what is looked for, and the more the longer what else the machine
// does has time to change. A turn has a few thousand spans, most of a page of the exporter.
const tracedRounds = 16

// traced measures what it costs the Shiva door to follow one of a hundred requests, with the way
// to a collector that takes all spans and keeps none: the rate of small requests to that without,
// two servers that take turns. The collector's time is a part of it, since it is in this process.
// Beside it stands the processor time of a request in all processes, which other work on the
// machine disturbs less: with all processors busy, the rate is its inverse.
func traced(ctx context.Context, o options, bin string) ([]ratio.Ratio, error) {
	rate := ratio.Ratio{What: "traces of 1 % / off: rate, " + workloads[deep].name, Bound: ratio.AtLeast, Limit: 0.99}
	cpu := ratio.Ratio{What: "traces of 1 % / off: processor time, all processes"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	var spans atomic.Int64 // bytes of them
	collector := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		n, _ := io.Copy(io.Discard, q.Body)
		spans.Add(n)
	})}
	go func() { _ = collector.Serve(l) }() // until Close
	defer collector.Close()

	configurations[followed] = fmt.Sprintf("[traces]\nendpoint = \"http://%s\"\none_in = 100\n", l.Addr())
	o.rounds, o.duration = o.rounds*tracedRounds, o.duration/4
	all, err := systems(ctx, o, bin, []string{"go", followed}, workloads[deep:deep+1])
	if err != nil {
		return nil, err
	}
	if spans.Load() == 0 {
		return nil, errors.New("run: traced: the collector got no span")
	}
	for round, with := range all[followed][0] {
		without := all["go"][0][round]
		rate.Rounds = append(rate.Rounds, with.rate/without.rate)
		cpu.Rounds = append(cpu.Rounds, with.cpu()/without.cpu())
	}
	return []ratio.Ratio{rate, cpu}, nil
}

// cpu is the processor time of a request in the system and in the client.
func (s sample) cpu() float64 { return float64(s.cpuPerRequest + s.ownPerRequest) }
