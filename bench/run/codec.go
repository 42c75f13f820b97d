package main

import (
	"context"
	"io"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// Benchmarks of package shiva behind the ratios.
const (
	benchCopy        = "BenchmarkCopy/size=1MiB"
	benchDecode      = "BenchmarkDecode/dtype=float32/size=1MiB"
	benchEncode      = "BenchmarkEncode/dtype=float32/size=1MiB"
	benchDecodeSmall = "BenchmarkDecode/dtype=float32/size=64B"
)

var codecBenches = []string{benchCopy, benchDecode, benchEncode, benchDecodeSmall}

// codec runs the benchmarks of package shiva once per round, so that rounds alternate between the
// codec and copy.
func codec(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) ([]ratio.Ratio, error) {
	g, err := buildBench(ctx, dir, "shiva")
	if err != nil {
		return nil, err
	}
	decode := ratio.Ratio{What: "decode 1 MiB float32 / copy", Bound: ratio.AtLeast, Limit: 0.6}
	encode := ratio.Ratio{What: "encode 1 MiB float32 / copy", Bound: ratio.AtLeast, Limit: 0.6}
	allocs := ratio.Ratio{What: "allocations to decode 64 B", Bound: ratio.AtMost, Limit: 0}
	for range rounds {
		got, err := g.run(ctx, out, codecBenches, "-test.benchtime", benchtime, "-test.cpu", "1")
		if err != nil {
			return nil, err
		}
		decode.Rounds = append(decode.Rounds, got[benchDecode]["MB/s"]/got[benchCopy]["MB/s"])
		encode.Rounds = append(encode.Rounds, got[benchEncode]["MB/s"]/got[benchCopy]["MB/s"])
		allocs.Rounds = append(allocs.Rounds, got[benchDecodeSmall]["allocs/op"])
	}
	return []ratio.Ratio{decode, encode, allocs}, nil
}

// benchJSON reads a JSON array of 150,528 floats into a tensor, and for comparison with
// encoding/json into a slice.
const benchJSON = "BenchmarkData/shortest"

// jsonParsing runs the benchmark of package rest, which includes its reference, once per round.
func jsonParsing(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) (ratio.Ratio, error) {
	r := ratio.Ratio{What: "encoding/json / JSON of 150,528 floats: time", Bound: ratio.AtLeast, Limit: 5}
	g, err := buildBench(ctx, dir, "server/internal/rest")
	if err != nil {
		return r, err
	}
	for range rounds {
		got, err := g.run(ctx, out, []string{benchJSON}, "-test.benchtime", benchtime, "-test.cpu", "1")
		if err != nil {
			return r, err
		}
		r.Rounds = append(r.Rounds, got[benchJSON]["x-encoding/json"])
	}
	return r, nil
}
