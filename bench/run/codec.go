package main

import (
	"context"
	"io"
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
func codec(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) ([]ratio, error) {
	g, err := buildBench(ctx, dir, "shiva")
	if err != nil {
		return nil, err
	}
	decode := ratio{what: "decode 1 MiB float32 / copy", bound: atLeast, limit: 0.6}
	encode := ratio{what: "encode 1 MiB float32 / copy", bound: atLeast, limit: 0.6}
	allocs := ratio{what: "allocations to decode 64 B", bound: atMost, limit: 0}
	for range rounds {
		got, err := g.run(ctx, out, codecBenches, "-test.benchtime", benchtime, "-test.cpu", "1")
		if err != nil {
			return nil, err
		}
		decode.rounds = append(decode.rounds, got[benchDecode]["MB/s"]/got[benchCopy]["MB/s"])
		encode.rounds = append(encode.rounds, got[benchEncode]["MB/s"]/got[benchCopy]["MB/s"])
		allocs.rounds = append(allocs.rounds, got[benchDecodeSmall]["allocs/op"])
	}
	return []ratio{decode, encode, allocs}, nil
}

// benchJSON reads a JSON array of 150,528 floats into a tensor, and in turn with encoding/json
// into a slice.
const benchJSON = "BenchmarkData/shortest"

// jsonParsing runs the benchmark of package rest, which includes its reference, once per round.
func jsonParsing(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) (ratio, error) {
	r := ratio{what: "encoding/json / JSON of 150,528 floats: time", bound: atLeast, limit: 5}
	g, err := buildBench(ctx, dir, "server/rest")
	if err != nil {
		return r, err
	}
	for range rounds {
		got, err := g.run(ctx, out, []string{benchJSON}, "-test.benchtime", benchtime, "-test.cpu", "1")
		if err != nil {
			return r, err
		}
		r.rounds = append(r.rounds, got[benchJSON]["x-encoding/json"])
	}
	return r, nil
}
