package main

import (
	"math"
	"strconv"
	"time"

	"github.com/shivad/shivad/shiva"
)

// A check holds a figure to a limit.
type check struct {
	what  string
	got   float64
	bound string // "<=", ">=", or "" for a figure without a limit
	limit float64
	unit  string
}

func (c check) holds() bool {
	switch c.bound {
	case "<=":
		return c.got <= c.limit
	case ">=":
		return c.got >= c.limit
	}
	return true
}

func (c check) cells() []string {
	figure := func(v float64) string { return strconv.FormatFloat(math.Round(100*v)/100, 'f', -1, 64) + c.unit }
	verdict, limit := "reported", "-"
	if c.bound != "" {
		verdict, limit = "pass", c.bound+" "+figure(c.limit)
	}
	if !c.holds() {
		verdict = "FAIL"
	}
	return []string{c.what, figure(c.got), limit, verdict}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

const (
	// A frame that is executed waits for each other stream at most once, and its stream's next
	// frame arrives a frame interval later.
	ageMost = cameras*slowTime + time.Second/fps
	spread  = 1.2 // of the 99th percentile of the age to the bound of the median
)

// checks are the promises.
func (m *measurement) checks() []check {
	half := m.length / 2
	early, late := m.latest.executed(0, half), m.latest.executed(half, m.length)
	for _, s := range m.fifth.executed(0, forever) {
		s.Stream = cameras
		late = append(late, s)
	}
	least, largest := shares(early, cameras)
	least5, largest5 := shares(late, cameras+1)
	four, five := most(m.looks, 0, half), most(m.looks, half, m.length)
	// within is the tolerance of a stream's share of the executions.
	within := func(n, streams int) float64 {
		return max(0.12, 2*float64(streams)/float64(max(1, n)))
	}
	w4, w5 := within(len(early), cameras), within(len(late), cameras+1)
	backward, miscounted := m.latest.disorder()
	back5, mis5 := m.fifth.disorder()
	last := m.all.executed(m.all.length*2/3, m.all.length)
	c := []check{
		{"frames without exactly one answer, of 4 cameras and the fifth",
			float64(m.latest.unanswered() + m.fifth.unanswered()), "<=", 0, ""},
		{"answers that are neither outputs nor Superseded",
			float64(m.latest.faults(shiva.Superseded) + m.fifth.faults(shiva.Superseded)), "<=", 0, ""},
		{"age when the answer leaves, p50", ms(age(early, 0.5)), "<=", ms(ageMost), " ms"},
		{"age when the answer leaves, p99", ms(age(early, 0.99)), "<=", ms(ageMost) * spread, " ms"},
		{"control, keep = all: age in the last third, p50", ms(age(last, 0.5)), ">=", ms(m.patience) * 0.9, " ms"},
		{"control, keep = all: frames without exactly one answer", float64(m.all.unanswered()), "<=", 0, ""},
		{"memory of waiting frames, most", four.waiting, "<=", cameras * 1.1, " frames"},
		{"memory of waiting frames with the fifth stream, most", five.waiting, "<=", (cameras + 1) * 1.1, " frames"},
		{"memory of those that arrive, execute and leave, too, most", four.all, "", 0, " frames"},
		{"executions of the stream that gets fewest", 100 * least, ">=", 100 * (1 - w4) / cameras, " %"},
		{"executions of the stream that gets most", 100 * largest, "<=", 100 * (1 + w4) / cameras, " %"},
		{"executions of five streams, fewest", 100 * least5, ">=", 100 * (1 - w5) / (cameras + 1), " %"},
		{"executions of five streams, most", 100 * largest5, "<=", 100 * (1 + w5) / (cameras + 1), " %"},
		{"first answer of the fifth stream", ms(m.fifth.first()), "<=", 550, " ms"},
		{"answers with a seq that goes back", float64(backward + back5), "<=", 0, ""},
		{"answers whose skipped is not what was superseded", float64(miscounted + mis5), "<=", 0, ""},
		{"server CPU of reading a frame", us(median(m.costs.reading)), "", 0, " µs"},
		{"server CPU of superseding it, beyond that", us(median(m.costs.superseded)), "<=", 20, " µs"},
		{"60 ms + 10 ms a row: rows in a batch", m.batch, ">=", 2, ""},
	}
	return c
}
