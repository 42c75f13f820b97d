package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
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
	under     []string // a command, with arguments, that starts the programs of a system; nil: none
}

var errFloor = errors.New("run: a ratio is beyond its limit")

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	var o options
	flag.IntVar(&o.rounds, "rounds", 9, "number of `rounds`, in each of which all systems take a turn")
	flag.DurationVar(&o.duration, "duration", time.Second, "measured `time` of one turn")
	short := flag.Bool("short", false, "three rounds of half a second: for a quick check, not for figures")
	only := flag.String("only", "", "measure only the parts that match this `regexp`: "+names())
	flag.StringVar(&o.profile, "profile", "", "write a CPU profile of each server under each load to this `directory`")
	flag.BoolVar(&o.markdown, "markdown", false, "write the tables in Markdown")
	flag.StringVar(&o.python, "python", process.Python(), "Python `interpreter` that has shiva_container: $PYTHON, or that of make")
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

// findings are the results of a part of the bench: ratios with their limits, and maybe a table.
type findings struct {
	ratios []ratio.Ratio
	head   []string
	table  [][]string
}

// A part of the bench can be selected with -only.
type part struct {
	name    string
	measure func(ctx context.Context, o options, bin string) (findings, error)
}

// besideAttacks returns the parts for the attacks.
func besideAttacks() (list []part) {
	for _, a := range attacks {
		list = append(list, part{a.name, func(ctx context.Context, o options, bin string) (f findings, err error) {
			f.ratios, err = beside(ctx, o, bin, a)
			return f, err
		}})
	}
	return list
}

// parts are in the order in which they run. The comparison of systems (echo, door, go, python)
// comes last.
var parts = slices.Concat([]part{
	{"codec", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = codec(ctx, os.Stdout, bin, o.rounds, o.benchtime(4, 300*time.Millisecond))
		return f, err
	}},
	{"json", func(ctx context.Context, o options, bin string) (findings, error) {
		return one(jsonParsing(ctx, os.Stdout, bin, o.rounds, o.benchtime(4, 300*time.Millisecond)))
	}},
	{"hostile", func(ctx context.Context, o options, bin string) (findings, error) {
		return one(besideHostile(ctx, o, bin))
	}},
}, besideAttacks(), []part{
	{"idle", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = besideIdle(ctx, o, bin)
		return f, err
	}},
	{"slow", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = besideSlow(ctx, o, bin)
		return f, err
	}},
	{"overhead", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.head = systemHead
		f.ratios, f.table, err = overhead(ctx, o, bin)
		return f, err
	}},
	{"direct", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = driving(ctx, o, bin)
		return f, err
	}},
	{"unread", func(ctx context.Context, o options, bin string) (findings, error) {
		return one(besideUnread(ctx, o, bin))
	}},
	{readLog, func(ctx context.Context, o options, bin string) (findings, error) {
		return one(besideLog(ctx, o, bin))
	}},
	{"identities", func(ctx context.Context, o options, bin string) (findings, error) {
		return one(guarded(ctx, o, bin))
	}},
	{followed, func(ctx context.Context, o options, bin string) (findings, error) {
		return one(traced(ctx, o, bin))
	}},
	{"tls", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.head = systemHead
		f.ratios, f.table, err = encrypted(ctx, o, bin)
		return f, err
	}},
	{crawled, func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = besideHandshakes(ctx, o, bin)
		return f, err
	}},
	{"quotas", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = besideGreedy(ctx, o, bin)
		return f, err
	}},
	{"search", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.ratios, err = search(ctx, o, bin)
		return f, err
	}},
	{"stall", func(ctx context.Context, o options, bin string) (findings, error) {
		return one(stall(ctx, o, bin))
	}},
	{"batches", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.head = []string{"a batch there and back", "µs", "MB/s", "B allocated", "in pieces"}
		// Short: some turns meet a quiet machine.
		f.ratios, f.table, err = batches(ctx, os.Stdout, bin, o.rounds, o.benchtime(25, 40*time.Millisecond))
		return f, err
	}},
	{"large", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.head = systemHead
		f.ratios, f.table, err = large(ctx, o, bin)
		return f, err
	}},
	{"doors", func(ctx context.Context, o options, bin string) (f findings, err error) {
		f.head = doorHead
		f.ratios, f.table, err = doors(ctx, o, bin)
		return f, err
	}},
})

// names lists the parts, and the systems to compare.
func names() string {
	var list []string
	for _, p := range parts {
		list = append(list, p.name)
	}
	return strings.Join(append(list, "door, go, python"), ", ")
}

func one(r ratio.Ratio, err error) (findings, error) {
	return findings{ratios: []ratio.Ratio{r}}, err
}

// benchtime formats a fraction of the duration for "go test -benchtime".
func (o options) benchtime(part time.Duration, most time.Duration) string {
	return min(o.duration/part, most).String()
}

var systemHead = []string{"system, load", "req/s", "MB/s", "p50 µs", "p99 µs", "p99.9 µs", "CPU µs/req"}

// systems returns the systems to compare; "echo" alone means none.
func (o options) systems() []string {
	names := []string{"echo"}
	for _, name := range []string{"door", "go", "python"} {
		if o.only.MatchString(name) {
			names = append(names, name)
		}
	}
	return names
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
	var all []findings
	for _, part := range parts {
		if o.only.MatchString(part.name) {
			found, err := part.measure(ctx, o, bin)
			if err != nil {
				return err
			}
			all = append(all, found)
		}
	}
	if names := o.systems(); len(names) > 1 {
		measured, err := systems(ctx, o, bin, names, workloads)
		if err != nil {
			return err
		}
		all = append(all, findings{measured.ratios(names), systemHead, measured.table(names, workloads)})
	}

	fmt.Println()
	var rows [][]string
	for _, found := range all {
		if found.table != nil {
			table.Write(os.Stdout, o.markdown, found.head, found.table)
			fmt.Println()
		}
		for _, r := range found.ratios {
			rows = append(rows, r.Cells())
			if !r.Holds() {
				err = errFloor
			}
		}
	}
	table.Write(os.Stdout, o.markdown, ratio.Head, rows)
	fmt.Printf("\n%d rounds of %v, %v in all\n", o.rounds, o.duration, time.Since(began).Round(time.Second))
	return err
}

// programs returns the programs of the named systems.
func programs(names []string) []string {
	of := map[string][]string{
		"echo": {"bench/echo"}, "door": {"bench/door"}, "go": {"cmd/shivad", "bench/noop"}, "guarded": {"cmd/shivad", "bench/noop"}, followed: {"cmd/shivad", "bench/noop"}, "python": {"cmd/shivad"},
		echoOfTLS: {"bench/echo"}, doorOfTLS: {"bench/door"},
	}
	var list []string
	for _, name := range names {
		list = append(list, of[name]...)
	}
	return list
}

// cpuModel returns the processor's name, which benchstat shows with the results.
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
