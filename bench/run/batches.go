package main

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// Parts of the names of package containers' benchmarks: sizes, kinds of sockets, and paths of the
// bytes.
const (
	benchBatch = "rows=64/row=4KiB"
	benchImage = "rows=1/row=6MiB"

	viaEcho      = "echo"      // between two bare processes: the reference
	viaContainer = "container" // scheduler, session and Go container
	viaWaiter    = "waiter"    // the same, for a goroutine that waits for each answer
	viaRouter    = "router"    // an unmodified zmq4 ROUTER, without a scheduler
)

var (
	batchSizes   = []string{benchBatch, benchImage}
	batchSockets = []string{"tcp", "ipc"}
	batchWays    = []string{viaRouter, viaEcho, viaContainer, viaWaiter}
)

func benchOf(size, socket, via string) string {
	return fmt.Sprintf("BenchmarkRoundTrip/%s/over=%s/via=%s", size, socket, via)
}

// batches runs the benchmarks of package containers once per round: the cost of a batch to a
// container and back. It returns the ratios and a table of medians.
func batches(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) ([]ratio.Ratio, [][]string, error) {
	g, err := buildBench(ctx, dir, "containers")
	if err != nil {
		return nil, nil, err
	}
	all := make(map[string][]map[string]float64) // by benchmark, then round
	ways := slices.Clone(batchWays)
	for range rounds {
		for _, size := range batchSizes {
			for _, socket := range batchSockets {
				for _, via := range ways {
					name := benchOf(size, socket, via)
					got, err := g.run(ctx, out, []string{name}, "-test.benchtime", benchtime, "-test.count", "6")
					if err != nil {
						return nil, nil, err
					}
					all[name] = append(all[name], got[name])
				}
			}
		}
		slices.Reverse(ways)
	}
	return batchRatios(all), batchTable(all), nil
}

// batchRatios returns the ratios, round by round.
func batchRatios(all map[string][]map[string]float64) (rs []ratio.Ratio) {
	against := func(r ratio.Ratio, size, socket, via, unit string) {
		bar := all[benchOf(size, socket, viaEcho)]
		for i, got := range all[benchOf(size, socket, via)] {
			r.Rounds = append(r.Rounds, got[unit]/bar[i][unit])
		}
		rs = append(rs, r)
	}
	for _, socket := range batchSockets {
		against(ratio.Ratio{What: "container / bare ZMTP: time, 64 x 4 KiB, " + socket, Bound: ratio.AtMost, Limit: 1.5}, benchBatch, socket, viaContainer, "ns/op")
		against(ratio.Ratio{What: "container, waiting / bare ZMTP: time, 64 x 4 KiB, " + socket}, benchBatch, socket, viaWaiter, "ns/op")
		against(ratio.Ratio{What: "zmq4's ROUTER / bare ZMTP: time, 64 x 4 KiB, " + socket}, benchBatch, socket, viaRouter, "ns/op")
	}
	for _, socket := range batchSockets {
		against(ratio.Ratio{What: "container / bare ZMTP: MB/s, 6 MiB, " + socket, Bound: ratio.AtLeast, Limit: 0.7}, benchImage, socket, viaContainer, "MB/s")
		against(ratio.Ratio{What: "zmq4's ROUTER / bare ZMTP: MB/s, 6 MiB, " + socket}, benchImage, socket, viaRouter, "MB/s")
	}
	// A heartbeat may add one a second.
	writes := ratio.Ratio{What: "writes of the server per batch, 64 x 4 KiB, tcp", Bound: ratio.AtMost, Limit: 1.01}
	allocs := ratio.Ratio{What: "allocations of the server per batch, 64 x 4 KiB, tcp", Bound: ratio.AtMost, Limit: 2}
	// The payload is 6 MiB, so that any growth with the payload shows.
	bytes := ratio.Ratio{What: "KiB that the server allocates per batch, 6 MiB, tcp", Bound: ratio.AtMost, Limit: 4}
	for i, got := range all[benchOf(benchBatch, "tcp", viaContainer)] {
		writes.Rounds = append(writes.Rounds, got["writes/op"])
		allocs.Rounds = append(allocs.Rounds, got["allocs/op"])
		bytes.Rounds = append(bytes.Rounds, all[benchOf(benchImage, "tcp", viaContainer)][i]["B/op"]/1024)
	}
	return append(rs, writes, allocs, bytes)
}

// batchTable returns the median round of every benchmark.
func batchTable(all map[string][]map[string]float64) (rows [][]string) {
	ways := map[string]string{viaEcho: "bare ZMTP", viaRouter: "zmq4's ROUTER", viaContainer: "container", viaWaiter: "container, waiting"}
	sizes := map[string]string{benchBatch: "64 x 4 KiB", benchImage: "6 MiB"}
	for _, size := range batchSizes {
		for _, socket := range batchSockets {
			for _, via := range batchWays {
				of := func(unit string) float64 {
					var v []float64
					for _, got := range all[benchOf(size, socket, via)] {
						v = append(v, got[unit])
					}
					return ratio.Median(v)
				}
				rows = append(rows, []string{
					fmt.Sprintf("%s, %s, %s", ways[via], sizes[size], socket),
					fmt.Sprintf("%.0f", of("ns/op")/1e3), fmt.Sprintf("%.0f", of("MB/s")), fmt.Sprintf("%.0f", of("B/op")), fmt.Sprintf("%.0f", of("allocs/op")),
				})
			}
		}
	}
	return rows
}
