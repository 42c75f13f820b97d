package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
)

// Benchmarks of package shiva that the claims are made of.
const (
	benchCopy        = "BenchmarkCopy/size=1MiB"
	benchDecode      = "BenchmarkDecode/dtype=float32/size=1MiB"
	benchEncode      = "BenchmarkEncode/dtype=float32/size=1MiB"
	benchDecodeSmall = "BenchmarkDecode/dtype=float32/size=64B"
)

var codecBenches = []string{benchCopy, benchDecode, benchEncode, benchDecodeSmall}

// codec runs the benchmarks of package shiva, once per round, so that rounds alternate between the codec and
// copy as well.
func codec(ctx context.Context, out io.Writer, dir string, rounds int, benchtime string) ([]ratio, error) {
	binary := dir + "/shiva.test"
	if text, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", binary, "./shiva").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run: building the benchmarks of shiva: %w\n%s", err, text)
	}
	decode := ratio{what: "decode 1 MiB float32 / copy", bound: atLeast, limit: 0.6}
	encode := ratio{what: "encode 1 MiB float32 / copy", bound: atLeast, limit: 0.6}
	allocs := ratio{what: "allocations to decode 64 B", bound: atMost, limit: 0}
	pattern := "^" + strings.ReplaceAll(strings.Join(codecBenches, "$|^"), "/", "$/^") + "$"
	for range rounds {
		text, err := exec.CommandContext(ctx, binary, "-test.run", "^$", "-test.benchtime", benchtime, "-test.cpu", "1",
			"-test.bench", pattern).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("run: benchmarks of shiva: %w\n%s", err, text)
		}
		got := parseBench(text)
		for _, name := range codecBenches {
			if got[name] == nil {
				return nil, fmt.Errorf("run: package shiva has no benchmark %s; it printed\n%s", name, text)
			}
		}
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(line, []byte("Benchmark")) {
				out.Write(line)
			}
		}
		decode.rounds = append(decode.rounds, got[benchDecode]["MB/s"]/got[benchCopy]["MB/s"])
		encode.rounds = append(encode.rounds, got[benchEncode]["MB/s"]/got[benchCopy]["MB/s"])
		allocs.rounds = append(allocs.rounds, got[benchDecodeSmall]["allocs/op"])
	}
	return []ratio{decode, encode, allocs}, nil
}

// parseBench reads Go's benchmark format: name to unit to value. The "-8" of GOMAXPROCS is cut off.
func parseBench(text []byte) map[string]map[string]float64 {
	all := map[string]map[string]float64{}
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) < 4 || !strings.HasPrefix(f[0], "Benchmark") {
			continue
		}
		name := f[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		units := map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				units[f[i+1]] = v
			}
		}
		all[name] = units
	}
	return all
}
