package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/load"
)

type options struct {
	rounds    int
	duration  time.Duration
	only      *regexp.Regexp
	profile   string
	markdown  bool
	python    string
	echoLoops int
}

var errFloor = errors.New("run: a floor does not hold")

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "number of `rounds`, in each of which all systems take a turn")
	flag.DurationVar(&o.duration, "duration", time.Second, "measured `time` of one turn")
	short := flag.Bool("short", false, "three rounds of half a second: for a quick check, not for figures")
	only := flag.String("only", "", "measure only the parts that match this `regexp`, of codec, json, batches, hostile, bombs, resets, unread, doors, door, go, python")
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of each server under each load to this `directory`")
	flag.BoolVar(&o.markdown, "markdown", false, "write the tables in Markdown")
	flag.StringVar(&o.python, "python", cmp.Or(os.Getenv("PYTHON"), "python3"), "Python `interpreter` that has shiva_container; $PYTHON if set")
	flag.IntVar(&o.echoLoops, "echo-loops", runtime.NumCPU(), "event `loops` of the bare echo")
	flag.Parse()
	err := process.AtTop()
	if err != nil {
		log.Fatal(err)
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		log.Fatalf("run: -only: %v", err)
	}
	if *short {
		o.rounds, o.duration = 3, time.Second/2
	}
	if err := run(ctx, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o options) (err error) {
	bin, err := os.MkdirTemp("", "shivad-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if o.profile != "" {
		if err := os.MkdirAll(o.profile, 0o755); err != nil {
			return err
		}
	}
	began := time.Now()
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/shivad/shivad/bench\ncpu: %s x %d\n", runtime.GOOS, runtime.GOARCH, cpuModel(), runtime.NumCPU())

	for _, w := range workloads {
		if w.frames, err = load.Frames(w.conns, w.model, w.dtype, w.shape); err != nil {
			return err
		}
	}
	var ratios []ratio
	var absolute [][]string
	if o.only.MatchString("codec") {
		benchtime := min(o.duration/4, 300*time.Millisecond).String()
		if ratios, err = codec(ctx, os.Stdout, bin, o.rounds, benchtime); err != nil {
			return err
		}
	}
	if o.only.MatchString("json") {
		r, err := jsonParsing(ctx, os.Stdout, bin, o.rounds, min(o.duration/4, 300*time.Millisecond).String())
		if err != nil {
			return err
		}
		ratios = append(ratios, r)
	}
	if o.only.MatchString("hostile") {
		r, err := besideHostile(ctx, o, bin)
		if err != nil {
			return err
		}
		ratios = append(ratios, r)
	}
	for _, a := range []attack{gzipBombs, rapidResets} {
		if o.only.MatchString(a.name) {
			r, err := beside(ctx, o, bin, a)
			if err != nil {
				return err
			}
			ratios = append(ratios, r)
		}
	}
	if o.only.MatchString("unread") {
		r, err := besideUnread(ctx, o, bin)
		if err != nil {
			return err
		}
		ratios = append(ratios, r)
	}
	var roundTrips [][]string
	if o.only.MatchString("batches") {
		// Short: some turns meet a quiet machine.
		benchtime := min(o.duration/25, 40*time.Millisecond).String()
		claims, table, err := batches(ctx, os.Stdout, bin, o.rounds, benchtime)
		if err != nil {
			return err
		}
		ratios, roundTrips = append(ratios, claims...), table
	}
	var fourDoors [][]string
	if o.only.MatchString("doors") {
		claims, table, err := doors(ctx, o, bin)
		if err != nil {
			return err
		}
		ratios, fourDoors = append(ratios, claims...), table
	}
	names := []string{"echo"}
	for _, name := range []string{"door", "go", "python"} {
		if o.only.MatchString(name) {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		measured, err := systems(ctx, o, bin, names)
		if err != nil {
			return err
		}
		ratios = append(ratios, measured.ratios(names)...)
		absolute = measured.table(names)
	}

	fmt.Println()
	if roundTrips != nil {
		writeTable(os.Stdout, o.markdown, []string{"a batch there and back", "µs", "MB/s", "B allocated", "in pieces"}, roundTrips)
		fmt.Println()
	}
	if fourDoors != nil {
		writeTable(os.Stdout, o.markdown, doorHead, fourDoors)
		fmt.Println()
	}
	if absolute != nil {
		writeTable(os.Stdout, o.markdown, []string{"system, load", "req/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/req"}, absolute)
		fmt.Println()
	}
	var rows [][]string
	for _, r := range ratios {
		rows = append(rows, r.cells())
		if !r.holds() {
			err = errFloor
		}
	}
	writeTable(os.Stdout, o.markdown, []string{"ratio", "median", "limit", "rounds", "verdict"}, rows)
	fmt.Printf("\n%d rounds of %v, %v in all\n", o.rounds, o.duration, time.Since(began).Round(time.Second))
	return err
}

// programs returns the programs of the named systems.
func programs(names []string) []string {
	of := map[string][]string{
		"echo": {"bench/echo"}, "door": {"bench/door"}, "go": {"cmd/shivad", "bench/noop"}, "python": {"cmd/shivad"},
	}
	var list []string
	for _, name := range names {
		list = append(list, of[name]...)
	}
	return list
}

// cpuModel returns the processor's name, which benchstat shows beside results.
func cpuModel() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return runtime.GOARCH
}
