package main

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
)

// turns returns the turns of a cell with the given rates, and processor times of as many
// milliseconds.
func turns(of ...float64) *series {
	s := &series{}
	for _, v := range of {
		s.turns = append(s.turns,
			turn{rate: v, p50: time.Duration(v) * time.Microsecond, cpu: time.Duration(v) * time.Millisecond})
	}
	return s
}

// Bars compare turns of the same round, and a bar without measurements does not hold.
func TestBars(t *testing.T) {
	o := &options{peers: "somewhere"}
	all := results{}
	for _, c := range o.plan() {
		all[c] = turns(100, 10, 1000)
	}
	all[many(inGo, shivaTCP, video)] = turns(90, 9, 100)
	bars := all.bars(true)
	if len(bars) != 14 {
		t.Fatalf("%d bars", len(bars))
	}
	for i, bar := range bars {
		if len(bar.Rounds) != 3 || bar.Bound == ratio.Reported {
			t.Errorf("%s: rounds %v, bound %v: is its cell not in the plan?", bar.What, bar.Rounds, bar.Bound)
		}
		if i == 0 && !slices.EqualFunc(bar.Rounds, []float64{0.9, 0.9, 0.1}, func(a, b float64) bool {
			return math.Abs(a-b) < 1e-9
		}) {
			t.Errorf("%s: %v", bar.What, bar.Rounds)
		}
	}
	delete(all, many(echo, shivaTCP, video))
	if bar := all.bars(false)[0]; bar.Holds() {
		t.Error("a bar holds that was not measured")
	}
	// A peer that is not installed is not measured.
	o.peers = ""
	for _, c := range o.plan() {
		if c.kind.peer != "" {
			t.Errorf("%s is in the plan", c.kind.name)
		}
	}
}
