package main

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

func TestParseBench(t *testing.T) {
	got := parseBench([]byte(`goos: linux
BenchmarkDecode/dtype=float32/size=1MiB-2   	   10000	    100000 ns/op	 10485.76 MB/s	       0 B/op	       0 allocs/op
BenchmarkCopy/size=1MiB 	   20000	     70000 ns/op	 14979.66 MB/s
BenchmarkCopy/size=1MiB 	   20000	     50000 ns/op	 20971.52 MB/s
BenchmarkCopy/size=1MiB 	   20000	     60000 ns/op	 17476.27 MB/s
PASS
`))
	if len(got) != 2 || got[benchDecode]["MB/s"] != 10485.76 || got[benchDecode]["allocs/op"] != 0 || got[benchCopy]["ns/op"] != 50000 {
		t.Errorf("got %v", got)
	}
}

// Turns alternate, every other round in reverse order, so that steady drift affects both alike; a
// ratio is of one round.
func TestContrast(t *testing.T) {
	turns := ""
	with := func(round uint64) (float64, error) { turns += "+"; return float64(3 * (round + 1)), nil }
	without := func(round uint64) (float64, error) { turns += "-"; return float64(round + 1), nil }
	got, err := contrast(3, with, without)
	if err != nil || turns != "-++--+" || !slices.Equal(got, []float64{3, 3, 3}) {
		t.Errorf("%s: %v, %v", turns, got, err)
	}
	failed := func(uint64) (float64, error) { return 0, errFloor }
	if _, err := contrast(1, failed, without); !errors.Is(err, errFloor) {
		t.Errorf("a turn that fails: %v", err)
	}
}

// Ratios are taken within a round: a slow round slows both.
func TestRatiosAreOfTheSameRound(t *testing.T) {
	turns := func(rate ...float64) (all []sample) {
		for _, r := range rate {
			all = append(all, sample{rate: r, p50: time.Duration(1e9 / r)})
		}
		return all
	}
	all := samples{
		"echo": {turns(1000, 100, 1000), turns(2000, 200, 2000), turns(1000, 100, 1000), turns(10, 1, 10)},
		"go":   {turns(300, 30, 100), turns(400, 20, 400), turns(500, 50, 100), turns(5, 0.5, 5)},
	}
	want := map[string][]float64{
		"go / echo: rate, " + workloads[deep].name:            {0.3, 0.3, 0.1},
		"go / echo: rate, " + workloads[gathered].name:        {0.2, 0.1, 0.2},
		"go / echo: rate, " + workloads[image].name:           {0.5, 0.5, 0.5},
		"go / echo: p50 of one at a time, to two round trips": {1, 1, 5},
	}
	got := all.ratios([]string{"echo", "go"})
	if len(got) != len(want) {
		t.Fatalf("%d ratios, want %d", len(got), len(want))
	}
	for _, r := range got {
		if !slices.EqualFunc(r.Rounds, want[r.What], func(a, b float64) bool { return a > b-1e-9 && a < b+1e-9 }) {
			t.Errorf("%s: %v, want %v", r.What, r.Rounds, want[r.What])
		}
		if (r.Bound == ratio.Reported) != strings.Contains(r.What, "gathered") {
			t.Errorf("%s: has it a limit? %v", r.What, r.Bound != ratio.Reported)
		}
	}
}

// TestBatchRatios: the ratios of containers are taken within a round, and have the right limits.
func TestBatchRatios(t *testing.T) {
	all := map[string][]map[string]float64{}
	for _, size := range batchSizes {
		for _, socket := range batchSockets {
			for i, via := range batchWays {
				for round := range 3 {
					ns := float64((i + 1) * (round + 1) * 1000)
					all[benchOf(size, socket, via)] = append(all[benchOf(size, socket, via)], map[string]float64{"ns/op": ns, "MB/s": 1e9 / ns, "writes/op": 1, "allocs/op": 3, "B/op": 4096})
				}
			}
		}
	}
	verdicts := map[string]int{}
	for _, r := range batchRatios(all) {
		cells := r.Cells()
		verdicts[cells[2]+" "+cells[4]]++
		if strings.Contains(r.What, "container / bare ZMTP: time") && !slices.Equal(r.Rounds, []float64{1.5, 1.5, 1.5}) {
			t.Errorf("%s: %v", r.What, r.Rounds)
		}
	}
	want := map[string]int{"<= 1.5 pass": 2, ">= 0.7 FAIL": 2, "<= 1.01 pass": 1, "<= 2 FAIL": 1, "<= 4 pass": 1, "- reported": 6}
	if !maps.Equal(verdicts, want) {
		t.Errorf("verdicts %v, want %v", verdicts, want)
	}
	if n := len(batchTable(all)); n != len(all) {
		t.Errorf("%d rows in the table, want %d", n, len(all))
	}
}
