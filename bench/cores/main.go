// Command cores measures how shivad scales with processors: small messages and frames over Shiva,
// and small requests over gRPC, with 1, 2, 4, 8 and 16 processors, given by affinity (taskset) and
// by the quota of a cgroup (as root). It stores profiles of locks, and a trace of the Go scheduler,
// of the largest number. On a machine with fewer processors it measures those that it has.
//
//	cores [-for 4s] [-dir DIR]
//	cores -quota [-for 2s]
//
// With -quota it checks a bar instead: with a quota of one processor, the server as it is answers
// at least 0.95 of what it answers with the best GOMAXPROCS set by hand. The exit status is 1 if
// not.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/internal/process"
)

func main() {
	length := flag.Duration("for", 4*time.Second, "`time` of each measurement")
	dir := flag.String("dir", "", "`directory` for binaries, logs and profiles; empty: a temporary one, which is kept")
	bar := flag.Bool("quota", false, "check the bar for a quota of one processor")
	flag.Parse()
	b := &bench{dir: *dir, length: *length}
	process.Main("cores", func(ctx context.Context) ([]string, error) {
		if err := b.build(ctx); err != nil {
			return nil, err
		}
		if *bar {
			return nil, b.checkQuota(ctx)
		}
		return nil, b.scale(ctx)
	})
}

// A load is one kind of request.
type load struct {
	name, route, door string
	inFlight          int
}

var loads = []load{
	{"small, Shiva", "small", "tcp", 16},
	{"frame, Shiva", "frame", "tcp", 1},
	{"small, gRPC", "small", "grpc", 16},
}

// scale measures every number of processors that the machine has, and prints a table.
func (b *bench) scale(ctx context.Context) error {
	has := runtime.NumCPU()
	fmt.Printf("%s: %d processors, %s %s\n", machineName(), has, runtime.GOOS, runtime.Version())
	for _, n := range []int{1, 2, 4, 8, 16} {
		if n > has {
			fmt.Printf("not measured: %d and more processors, which this machine lacks\n", n)
			break
		}
		if 2*n > has {
			fmt.Printf("%d of %d: clients and containers share processors with the server, so this is not its limit\n", n, has)
		}
	}
	fmt.Printf("%-10s %-8s", "processors", "by")
	for _, l := range loads {
		fmt.Printf("  %18s", l.name+"/s")
	}
	fmt.Println("  (of linear)")
	for _, by := range []limiter{affinity{}, &quota{}} {
		one := map[string]float64{}
		for _, n := range []int{1, 2, 4, 8, 16} {
			if n > has || n == has && by.name() == "quota" { // the quota limits nothing
				break
			}
			if err := b.row(ctx, by, n, one); err != nil {
				fmt.Printf("%-10d %-8s  not measured: %v\n", n, by.name(), err)
				break
			}
		}
	}
	fmt.Println("profiles, of the largest number:", b.dir)
	return nil
}

// row measures one number of processors, and prints it beside a multiple of one.
func (b *bench) row(ctx context.Context, by limiter, n int, one map[string]float64) error {
	s, err := b.start(ctx, by, n, nil)
	if err != nil {
		return err
	}
	defer s.stop()
	line := fmt.Sprintf("%-10d %-8s", n, by.name())
	for _, l := range loads {
		rate, err := s.offer(ctx, l, b.length)
		if err != nil {
			return err
		}
		one[l.name] = cmp.Or(one[l.name], rate)
		line += fmt.Sprintf("  %10.0f (%.2f)", rate, rate/(float64(n)*one[l.name]))
	}
	fmt.Println(line)
	return s.profile(ctx)
}

// quotaBar is the share of the best rate of any GOMAXPROCS that the server must reach by itself.
const quotaBar = 0.95

// checkQuota compares the server as it is with GOMAXPROCS from 1 to 4, in alternating rounds.
func (b *bench) checkQuota(ctx context.Context) error {
	if runtime.NumCPU() < 2 {
		fmt.Println("not measured: a quota of one processor limits nothing on a machine with one")
		return nil
	}
	settings := []string{"", "1", "2", "3", "4"}
	rates := map[string][]float64{}
	for range 5 {
		for _, set := range settings {
			var env []string
			if set != "" {
				env = []string{"GOMAXPROCS=" + set}
			}
			rate, err := b.once(ctx, env)
			if err != nil {
				return err
			}
			rates[set] = append(rates[set], rate)
		}
	}
	var shown []string
	best := 0.0
	for _, set := range settings {
		slices.Sort(rates[set])
		rate := rates[set][len(rates[set])/2]
		shown = append(shown, fmt.Sprintf("%s %.0f/s", cmp.Or(set, "as it is"), rate))
		best = max(best, rate)
	}
	ratio := rates[""][len(rates[""])/2] / best
	verdict := "ok"
	if ratio < quotaBar {
		verdict = "BROKEN"
	}
	fmt.Printf("quota of one processor: GOMAXPROCS %s: %.2f of the best, bar %.2f %s\n", strings.Join(shown, ", "),
		ratio, quotaBar, verdict)
	if ratio < quotaBar {
		return fmt.Errorf("the server does not follow the quota")
	}
	return nil
}

// once measures small messages with a quota of one processor.
func (b *bench) once(ctx context.Context, env []string) (float64, error) {
	s, err := b.start(ctx, &quota{}, 1, env)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	return s.offer(ctx, loads[0], b.length)
}
