package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A gobench is a package's benchmarks, built once and run in many rounds.
type gobench struct {
	pkg    string // its directory
	binary string
}

// buildBench builds the benchmarks of the package in directory pkg into dir.
func buildBench(ctx context.Context, dir, pkg string) (*gobench, error) {
	g := &gobench{pkg: pkg, binary: filepath.Join(dir, filepath.Base(pkg)+".test")}
	if text, err := exec.CommandContext(ctx, "go", "test", "-c", "-o", g.binary, "./"+pkg).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("run: building the benchmarks of %s: %w\n%s", pkg, err, text)
	}
	return g, nil
}

// run runs benchmarks once, in the order of their package, copies their lines to out, and returns
// their results: name to unit to value.
func (g *gobench) run(ctx context.Context, out io.Writer, names []string, args ...string) (map[string]map[string]float64, error) {
	args = append([]string{"-test.run", "^$", "-test.bench", benchPattern(names)}, args...)
	cmd := exec.CommandContext(ctx, g.binary, args...)
	cmd.Dir = g.pkg
	text, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("run: benchmarks of %s: %w\n%s", g.pkg, err, text)
	}
	got := parseBench(text)
	for _, name := range names {
		if got[name] == nil {
			return nil, fmt.Errorf("run: package %s has no benchmark %s; it printed\n%s", g.pkg, name, text)
		}
	}
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("Benchmark")) {
			out.Write(line)
		}
	}
	return got, nil
}

// benchPattern matches these benchmarks. The testing package splits patterns at each slash and
// matches level by level.
func benchPattern(names []string) string {
	return "^" + strings.ReplaceAll(strings.Join(names, "$|^"), "/", "$/^") + "$"
}

// parseBench parses Go's benchmark format: name to unit to value. It removes the "-8" of
// GOMAXPROCS. If a benchmark ran several times, the fastest run counts, since other work of the
// machine only makes it slower.
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
		if was, ok := all[name]; !ok || units["ns/op"] < was["ns/op"] {
			all[name] = units
		}
	}
	return all
}
