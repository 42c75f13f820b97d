package main

import (
	"math"
	"time"

	"github.com/shivad/shivad/bench/internal/ratio"
	"github.com/shivad/shivad/shiva"
)

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// atMost and atLeast are figures with a limit, which the report shows to two digits.
func atMost(limit float64, what string, rounds ...float64) ratio.Ratio {
	return ratio.Ratio{What: what, Rounds: rounds, Bound: ratio.AtMost, Limit: math.Round(100*limit) / 100}
}

func atLeast(limit float64, what string, rounds ...float64) ratio.Ratio {
	return ratio.Ratio{What: what, Rounds: rounds, Bound: ratio.AtLeast, Limit: math.Round(100*limit) / 100}
}

const (
	// A frame that is executed waits for each other stream at most once, and its stream's next
	// frame arrives a frame interval later.
	ageMost = cameras*slowTime + time.Second/fps
	spread  = 1.2 // of the 99th percentile of the age to the bound of the median
)

// checks are the promises.
func (m *measurement) checks() []ratio.Ratio {
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
	return []ratio.Ratio{
		atMost(0, "frames without exactly one answer, of 4 cameras and the fifth",
			float64(m.latest.unanswered()+m.fifth.unanswered())),
		atMost(0, "answers that are neither outputs nor Superseded",
			float64(m.latest.faults(shiva.Superseded)+m.fifth.faults(shiva.Superseded))),
		atMost(ms(ageMost), "age when the answer leaves, p50, ms", ms(age(early, 0.5))),
		atMost(ms(ageMost)*spread, "age when the answer leaves, p99, ms", ms(age(early, 0.99))),
		atLeast(ms(m.patience)*0.9, "control, keep = all: age in the last third, p50, ms", ms(age(last, 0.5))),
		atMost(0, "control, keep = all: frames without exactly one answer", float64(m.all.unanswered())),
		atMost(cameras*1.1, "memory of waiting frames, most, in frames", four.waiting),
		atMost((cameras+1)*1.1, "memory of waiting frames with the fifth stream, most, in frames", five.waiting),
		{What: "memory of those that arrive, execute and leave, too, most, in frames", Rounds: []float64{four.all}},
		atLeast(100*(1-w4)/cameras, "executions of the stream that gets fewest, %", 100*least),
		atMost(100*(1+w4)/cameras, "executions of the stream that gets most, %", 100*largest),
		atLeast(100*(1-w5)/(cameras+1), "executions of five streams, fewest, %", 100*least5),
		atMost(100*(1+w5)/(cameras+1), "executions of five streams, most, %", 100*largest5),
		atMost(550, "first answer of the fifth stream, ms", ms(m.fifth.first())),
		atMost(0, "answers with a seq that goes back", float64(backward+back5)),
		atMost(0, "answers whose skipped is not what was superseded", float64(miscounted+mis5)),
		{What: "server CPU of reading a frame, µs", Rounds: m.costs.reading},
		atMost(20, "server CPU of superseding it, beyond that, µs", m.costs.superseded...),
		atLeast(2, "60 ms + 10 ms a row: rows in a batch", m.batch),
	}
}
