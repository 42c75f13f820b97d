package main

import (
	"slices"
	"testing"
	"time"
)

// More at once, fewer after the window; noise changes the number once in a window at most.
func TestScale(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		numbers []int32 // one a second
		window  time.Duration
		r       Range
		want    []int32
	}{
		"up at once":          {[]int32{1, 3, 9}, 4 * time.Second, Range{0, 10}, []int32{1, 3, 9}},
		"down after a window": {[]int32{5, 2, 2, 2, 2, 2}, 4 * time.Second, Range{0, 10}, []int32{5, 5, 5, 5, 2, 2}},
		"step by step": {[]int32{5, 4, 3, 3, 3, 3, 3}, 3 * time.Second, Range{0, 10},
			[]int32{5, 5, 5, 4, 3, 3, 3}},
		"noise":   {[]int32{2, 3, 2, 3, 2, 2, 3, 2}, 4 * time.Second, Range{0, 10}, []int32{2, 3, 3, 3, 3, 3, 3, 3}},
		"bounds":  {[]int32{0, 99, 0}, time.Second, Range{1, 8}, []int32{1, 8, 1}},
		"to zero": {[]int32{1, 0, 0, 0}, 2 * time.Second, Range{0, 8}, []int32{1, 1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var s scale
			var got []int32
			for i, n := range c.numbers {
				now := start.Add(time.Duration(i) * time.Second)
				s.add(now, n)
				got = append(got, s.replicas(now, c.window, c.r, 0))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v becomes %v, want %v", c.numbers, got, c.want)
			}
		})
	}
}

// However long a scale runs, it keeps few samples: those that may still decide.
func TestScaleForgets(t *testing.T) {
	var s scale
	now := time.Unix(1000, 0)
	for i := range 10_000 {
		now = now.Add(5 * time.Second)
		s.add(now, int32(10-i%10))
		s.replicas(now, time.Minute, Range{0, 20}, 0)
		if len(s.samples) > 13 {
			t.Fatalf("%d samples", len(s.samples))
		}
	}
}
