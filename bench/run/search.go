package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/tensor"
)

const (
	searched   = "slow"          // a model that takes 15 ms and 1 ms for each row
	searchFor  = 5 * time.Second // of the trial that confirms a search's result
	searchFrom = 100             // requests per second that the model surely serves
)

var searchPromise = load.Promise{Share: 0.99, Within: 250 * time.Millisecond}

// search compares the highest rate with p99 < 250 ms that "shivactl bench --search" finds with that
// of MLPerf LoadGen's server scenario, on the same server. Both have Poisson arrivals, and count
// latencies from when each request was due. The search over LoadGen's runs is the same, as LoadGen
// itself only judges a given rate. The two alternate; a search is long, so there are few rounds.
func search(ctx context.Context, o options, bin string) ([]ratio.Ratio, error) {
	if err := process.Build(ctx, bin, "cmd/shivad", "cmd/shivactl", "bench/sleeper"); err != nil {
		return nil, err
	}
	s, err := startSearched(ctx, bin)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	generator, err := startLoadGen(ctx, o.python, s.addr)
	if err != nil {
		return nil, err
	}
	defer generator.stop()
	least := ratio.Ratio{What: "highest rate with p99 < 250 ms: shivactl bench / MLPerf LoadGen", Bound: ratio.AtLeast, Limit: 0.95}
	found := func(by string, search func() (float64, error)) func(uint64) (float64, error) {
		return func(uint64) (float64, error) {
			rate, err := search()
			if err = errors.Join(err, s.Alive()); err != nil {
				return 0, fmt.Errorf("run: searching by %s: %w", by, err)
			}
			fmt.Printf("BenchmarkSearch/by=%s\t1\t%10.1f req/s\n", by, rate)
			return rate, nil
		}
	}
	least.Rounds, err = contrast(max(1, o.rounds/3),
		found("shivactl", func() (float64, error) { return searchByTool(ctx, bin, s.addr) }),
		found("loadgen", func() (float64, error) {
			rate, _, err := load.Search(ctx, searchPromise, searchFrom, searchFor, generator.trial)
			return rate, err
		}))
	if err != nil {
		return nil, err
	}
	most := least
	most.Bound, most.Limit = ratio.AtMost, 1.05
	return []ratio.Ratio{least, most}, nil
}

// startSearched starts a server and the model.
func startSearched(ctx context.Context, bin string) (*system, error) {
	s, server, err := bare("search", bin)
	if err != nil {
		return nil, err
	}
	frame, err := searchFrame()
	if err != nil {
		return nil, err
	}
	return s, s.launch(ctx, bin, load.Config{Frames: [][]byte{frame}}, server,
		[]string{filepath.Join(bin, "sleeper"), "-servers", s.containers, "-a", "15ms", "-b", "1ms", searched + ":FP32:16"})
}

func searchFrame() ([]byte, error) {
	frames, err := load.Frames(1, searched, tensor.Float32, tensor.Shape{1, 16})
	if err != nil {
		return nil, err
	}
	return frames[0], nil
}

// searchByTool runs shivactl.
func searchByTool(ctx context.Context, bin, addr string) (float64, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "shivactl"), "bench", searched, "--addr", addr,
		"--search", searchPromise.String(), "--for", searchFor.String(), "--json")
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	var report struct{ Search struct{ Rate float64 } }
	err = json.Unmarshal(out, &report)
	return report.Search.Rate, err
}

// A loadGen is the process of loadgen.py.
type loadGen struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errors bytes.Buffer
	trials int
}

func startLoadGen(ctx context.Context, python, addr string) (*loadGen, error) {
	frame, err := searchFrame()
	if err != nil {
		return nil, err
	}
	g := &loadGen{cmd: exec.CommandContext(ctx, python, filepath.Join("bench", "run", "loadgen.py"), addr,
		strconv.FormatInt(searchPromise.Within.Milliseconds(), 10), hex.EncodeToString(frame))}
	g.cmd.Stderr = &g.errors
	var out io.ReadCloser
	if g.in, err = g.cmd.StdinPipe(); err == nil {
		out, err = g.cmd.StdoutPipe()
	}
	if err != nil {
		return nil, err
	}
	g.out = bufio.NewReader(out)
	return g, g.cmd.Start()
}

func (g *loadGen) stop() {
	g.in.Close()
	_ = g.cmd.Wait()
}

// trial makes LoadGen offer a rate. The verdict rests on LoadGen's percentile of the latency: for a
// verdict of its own LoadGen requires more requests than a short run has.
func (g *loadGen) trial(_ context.Context, rate float64, length time.Duration, _ bool) (load.Trial, error) {
	g.trials++
	t := load.Trial{Rate: rate, Length: length}
	if _, err := fmt.Fprintln(g.in, rate, length.Seconds(), g.trials); err != nil {
		return t, fmt.Errorf("loadgen.py: %w\n%s", err, g.errors.Bytes())
	}
	line, err := g.out.ReadBytes('\n')
	if err != nil {
		return t, fmt.Errorf("loadgen.py: %w\n%s", err, g.errors.Bytes())
	}
	var sum struct{ Requests, P50, P99, Failed int64 }
	if err := json.Unmarshal(line, &sum); err != nil {
		return t, fmt.Errorf("loadgen.py: %w: %s", err, line)
	}
	t.Requests, t.At, t.Failed = sum.Requests, time.Duration(sum.P99), sum.Failed
	switch {
	case sum.Failed == 0 && t.At < searchPromise.Within:
		t.Kept = sum.Requests
	case time.Duration(sum.P50) < searchPromise.Within:
		t.Kept = int64(searchPromise.Share*float64(sum.Requests)) - 1
	}
	return t, nil
}

// stall stops a server for a thirtieth of the time for which "shivactl bench" offers it load, and
// compares the 99.9th percentile that the tool reports with the length of the stall.
func stall(ctx context.Context, o options, bin string) (r ratio.Ratio, err error) {
	r = ratio.Ratio{What: "p99.9 that shivactl bench shows / the stall of 1 s in 30 s", Bound: ratio.AtLeast, Limit: 0.9}
	length := 30 * time.Second
	if o.duration < time.Second { // -short
		length = 3 * time.Second
	}
	if err := process.Build(ctx, bin, "cmd/shivactl", "bench/door"); err != nil {
		return r, err
	}
	addr, err := process.FreeAddr()
	if err != nil {
		return r, err
	}
	frame, err := searchFrame()
	if err != nil {
		return r, err
	}
	s := &system{name: "stall", addr: addr}
	if err := s.launch(ctx, bin, load.Config{Frames: [][]byte{frame}}, []string{filepath.Join(bin, "door"), "-listen", addr, searched + ":FP32:16"}); err != nil {
		return r, err
	}
	defer s.Stop()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "shivactl"), "bench", searched, "--addr", addr, "--rate", "300", "--for", length.String(), "--json")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Start(); err != nil {
		return r, err
	}
	time.Sleep(length / 3)
	err = s.Group[0].Pause(length / 30)
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return r, fmt.Errorf("run: stall: %w: %s", err, out.Bytes())
	}
	var report struct {
		Latency struct {
			P999 float64 `json:"p99_9"`
		} `json:"latency_ms"`
	}
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return r, err
	}
	r.Rounds = []float64{report.Latency.P999 / (length.Seconds() * 1e3 / 30)}
	return r, nil
}
