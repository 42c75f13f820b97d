package main

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/bench/load"
)

var errTurn = errors.New("a turn fails")

// Turns alternate, every other round in reverse order, so that steady drift affects both alike; a
// ratio is of one round.
func TestContrast(t *testing.T) {
	turns := ""
	with := func(round uint64) (float64, error) { turns += "+"; return float64(3 * (round + 1)), nil }
	without := func(round uint64) (float64, error) { turns += "-"; return float64(round + 1), nil }
	got, err := contrast(ratio.Ratio{}, 3, with, without)
	if err != nil || turns != "+--++-" || !slices.Equal(got.Rounds, []float64{3, 3, 3}) {
		t.Errorf("%s: %v, %v", turns, got, err)
	}
	failed := func(uint64) (float64, error) { return 0, errTurn }
	if _, err := contrast(ratio.Ratio{}, 1, failed, without); !errors.Is(err, errTurn) {
		t.Errorf("a turn that fails: %v", err)
	}
}

// The majority of its pieces decides about a turn: not the piece in which the machine stood still,
// and not a piece without requests.
func TestP99OfPieces(t *testing.T) {
	r := &load.Result{Pieces: make([]load.Histogram, 5)}
	for i := range r.Pieces[:4] {
		for range 98 {
			r.Pieces[i].Add(time.Millisecond)
		}
		for range 2 {
			r.Pieces[i].Add(time.Duration(2+i) * time.Millisecond)
		}
	}
	r.Pieces[3].Add(time.Second)
	if p99 := time.Duration(p99Of(r)); p99.Round(time.Millisecond) != 3*time.Millisecond {
		t.Errorf("got %v, expected the middle of 0, 2, 3, 4 and 5 ms", p99)
	}
}

// samplesOf are turns with some rates, one at a time as long as these say.
func samplesOf(rates ...float64) (all []sample) {
	for _, r := range rates {
		all = append(all, sample{rate: r, p50: time.Duration(1e9 / r)})
	}
	return all
}

// A claim is what a ratio must be: its rounds, and its limit; 0: none.
type claim struct {
	rounds []float64
	limit  float64
}

func check(t *testing.T, got []ratio.Ratio, want map[string]claim) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d ratios, want %d", len(got), len(want))
	}
	for _, r := range got {
		c, ok := want[r.What]
		if !ok || r.Limit != c.limit || (r.Bound == ratio.Reported) != (c.limit == 0) ||
			!slices.EqualFunc(r.Rounds, c.rounds, func(a, b float64) bool { return math.Abs(a-b) < 1e-6 }) {
			t.Errorf("%+v, want %+v", r, c)
		}
	}
}

// Ratios are taken within a round: a slow round slows both.
func TestBesideEcho(t *testing.T) {
	all := samples{
		"echo": {deep: samplesOf(1000, 100, 1000), gathered: samplesOf(2000, 200, 2000),
			single: samplesOf(1000, 100, 1000), image: samplesOf(10, 1, 10)},
		"go": {deep: samplesOf(300, 30, 100), gathered: samplesOf(400, 20, 400), single: samplesOf(500, 50, 100),
			image: samplesOf(5, 0.5, 5)},
	}
	check(t, all.besideEcho("go"), map[string]claim{
		"go / echo: rate, " + deep.name:                       {[]float64{0.3, 0.3, 0.1}, 0.2},
		"go / echo: rate, " + gathered.name:                   {[]float64{0.2, 0.1, 0.2}, 0},
		"go / echo: rate, " + image.name:                      {[]float64{0.5, 0.5, 0.5}, 0.35},
		"go / echo: p50 of one at a time, to two round trips": {[]float64{1, 1, 5}, 3},
	})
}

// The floor is for the large tensor in bytes.
func TestDoors(t *testing.T) {
	loads, all := doorLoads(), samples{inDoor.name: {}}
	for _, forms := range loads {
		for i, w := range forms {
			all[inDoor.name][w] = samplesOf(1024/math.Pow(2, float64(i)), 512/math.Pow(2, float64(i)))
		}
	}
	check(t, all.doors(loads), map[string]claim{
		"REST, bytes / Shiva: rate, 64 B, 256 in flight": {[]float64{0.5, 0.5}, 0},
		"REST, JSON / Shiva: rate, 64 B, 256 in flight":  {[]float64{0.25, 0.25}, 0},
		"gRPC, raw / Shiva: rate, 64 B, 256 in flight":   {[]float64{0.125, 0.125}, 0},
		"REST, bytes / Shiva: rate, 602 KB, 8 in flight": {[]float64{0.5, 0.5}, 0.5},
		"REST, JSON / Shiva: rate, 602 KB, 8 in flight":  {[]float64{0.25, 0.25}, 0},
		"gRPC, raw / Shiva: rate, 602 KB, 8 in flight":   {[]float64{0.125, 0.125}, 0.5},
	})
	if rows := all.table([]setup{inDoor}, loads[0]); len(rows) != 4 || len(rows[0]) != len(systemHead) || rows[0][1] != "768" {
		t.Errorf("%q", rows)
	}
}
