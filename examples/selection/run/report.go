package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/shivad/shivad/examples/selection"
)

// lineEvery is the number of rounds for each line of the text chart, barWidth the width of its
// bar in characters.
const (
	lineEvery = 20
	barWidth  = 40
)

// head prints the line above the text chart.
func (s *stream) head() {
	fmt.Fprintf(s.out, "%9s  %-*s", "feedbacks", barWidth, "weights, by first letter")
	for _, name := range selection.Models {
		fmt.Fprintf(s.out, "  %7s", name)
	}
	fmt.Fprintln(s.out, "  right")
}

// line prints the current weights, and in how many of the last n rounds the application was
// right.
func (s *stream) line(n int) {
	now := s.rounds[len(s.rounds)-1]
	fmt.Fprintf(s.out, "%9d  %s", len(s.rounds), bar(now.shares))
	for _, share := range now.shares {
		fmt.Fprintf(s.out, "  %7.3f", share)
	}
	fmt.Fprintf(s.out, "  %d of %d\n", applicationRight(s.rounds[len(s.rounds)-n:]), n)
}

// bar draws a segment for each model, of the model's first letter, with its weight as length.
func bar(shares [models]float64) string {
	var b strings.Builder
	sum := 0.0
	for i, share := range shares {
		sum += share
		b.WriteString(strings.Repeat(selection.Models[i][:1], max(0, int(math.Round(sum*barWidth))-b.Len())))
	}
	return b.String()
}

// summarise compares the application with its models in both halves.
func summarise(out io.Writer, rounds []round) {
	half := len(rounds) / 2
	fmt.Fprintf(out, "\n%-12s %11s %11s %11s\n", "right, in %", "first half", "second half", "all")
	line := func(name string, right func([]round) int) {
		fmt.Fprintf(out, "%-12s %11.1f %11.1f %11.1f\n", name, percent(right, rounds[:half]),
			percent(right, rounds[half:]), percent(right, rounds))
	}
	for i, name := range selection.Models {
		line(name, func(rounds []round) int { return modelRight(rounds, i) })
	}
	line("application", applicationRight)
}

func percent(right func([]round) int, rounds []round) float64 {
	return 100 * float64(right(rounds)) / float64(len(rounds))
}

// applicationRight counts the rounds in which the application was right.
func applicationRight(rounds []round) (n int) {
	for _, r := range rounds {
		if r.right {
			n++
		}
	}
	return n
}

// modelRight counts the rounds in which a model was right.
func modelRight(rounds []round, model int) (n int) {
	for _, r := range rounds {
		if r.single[model] {
			n++
		}
	}
	return n
}
