package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/internal/table"
)

// A bench is a run of this program.
type bench struct {
	rounds    int
	duration  time.Duration
	only      *regexp.Regexp
	profile   string // directory; "": no profiles
	markdown  bool
	python    string
	echoLoops int
	bin       string // directory of the programs
}

func main() {
	b := &bench{}
	flag.IntVar(&b.rounds, "rounds", 9, "number of `rounds`, in each of which all systems take a turn")
	flag.DurationVar(&b.duration, "duration", time.Second, "measured `time` of one turn")
	short := flag.Bool("short", false, "three rounds of half a second: for a quick check, not for figures")
	b.only = regexp.MustCompile("")
	flag.Func("only", "measure only the parts that match this `regexp`: "+names(), func(text string) (err error) {
		b.only, err = regexp.Compile(text)
		return err
	})
	flag.StringVar(&b.profile, "profile", "", "write a CPU profile of each server under each load to this `directory`")
	flag.BoolVar(&b.markdown, "markdown", false, "write the tables in Markdown")
	flag.StringVar(&b.python, "python", process.Python(), "Python `interpreter` that has shiva_container: $PYTHON, or that of make")
	flag.IntVar(&b.echoLoops, "echo-loops", runtime.NumCPU(), "event `loops` of the bare echo")
	flag.Parse()
	if *short {
		b.rounds, b.duration = 3, time.Second/2
	}
	process.Main("run", b.run)
}

// findings are the results of a part of the bench: ratios with their limits, and maybe a table.
type findings struct {
	ratios []ratio.Ratio
	table  [][]string
	head   []string
}

// A part of the bench can be selected with -only.
type part struct {
	name    string
	measure func(ctx context.Context, b *bench) (findings, error)
}

// parts are in the order in which they run.
var parts = slices.Concat([]part{{"hostile", besideHostile}}, attacks(), []part{
	{"idle", besideIdle},
	{"slow", besideSlow},
	{"overhead", overhead},
	{"direct", driving},
	{"unread", besideUnread},
	{"log", besideLog},
	{"identities", guarded},
	{"traced", traced},
	{"tls", encrypted},
	{"handshakes", besideHandshakes},
	{"stall", stall},
	{"doors", doors},
	{"door", besideEcho(inDoor)},
	{"go", besideEcho(inGo)},
	{"python", besideEcho(inPython)},
})

func names() string {
	var list []string
	for _, p := range parts {
		list = append(list, p.name)
	}
	return strings.Join(list, ", ")
}

// programs are all that parts start.
var programs = []string{"cmd/shivad", "cmd/shivactl", "bench/echo", "bench/door", "bench/noop", "bench/sleeper", "bench/hostile"}

// run measures the chosen parts, and returns the ratios that are beyond their limits.
func (b *bench) run(ctx context.Context) (broken []string, err error) {
	if b.bin, err = os.MkdirTemp("", "shivad-bench-"); err != nil {
		return nil, err
	}
	defer os.RemoveAll(b.bin)
	if b.profile != "" {
		if err := os.MkdirAll(b.profile, 0o755); err != nil {
			return nil, err
		}
	}
	if err := process.Build(ctx, b.bin, programs...); err != nil {
		return nil, err
	}
	began := time.Now()
	fmt.Printf("goos: %s\ngoarch: %s\npkg: github.com/shivad/shivad/bench\ncpu: %s x %d\n", runtime.GOOS,
		runtime.GOARCH, cpuModel(), runtime.NumCPU())
	var rows [][]string
	var tables []findings
	for _, part := range parts {
		if !b.only.MatchString(part.name) {
			continue
		}
		found, err := part.measure(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
		tables = append(tables, found)
		for _, r := range found.ratios {
			rows = append(rows, r.Cells())
			if !r.Holds() {
				broken = append(broken, r.What)
			}
		}
	}
	fmt.Println()
	for _, found := range tables {
		if found.table != nil {
			table.Write(os.Stdout, b.markdown, found.head, found.table)
			fmt.Println()
		}
	}
	table.Write(os.Stdout, b.markdown, ratio.Head, rows)
	fmt.Printf("\n%d rounds of %v, %v in all\n", b.rounds, b.duration, time.Since(began).Round(time.Second))
	return broken, nil
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
