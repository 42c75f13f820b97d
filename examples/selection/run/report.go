package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/shivad/shivad/examples/selection"
)

// lineEvery is how many rounds make a line of the curve in text, barWidth how many characters
// all weights together are.
const (
	lineEvery = 20
	barWidth  = 40
)

// head is the line above the curve in text.
func (s *stream) head() {
	fmt.Fprintf(s.out, "%9s  %-*s", "feedbacks", barWidth, "weights, by first letter")
	for _, name := range selection.Models {
		fmt.Fprintf(s.out, "  %7s", name)
	}
	fmt.Fprintln(s.out, "  right")
}

// line shows the weights of now, and how many of the last n rounds the application was right in.
func (s *stream) line(n int) {
	now := s.rounds[len(s.rounds)-1]
	fmt.Fprintf(s.out, "%9d  %s", len(s.rounds), bar(now.shares))
	for _, share := range now.shares {
		fmt.Fprintf(s.out, "  %7.3f", share)
	}
	fmt.Fprintf(s.out, "  %d of %d\n", applicationRight(s.rounds[len(s.rounds)-n:]), n)
}

// bar has a part for each model that is as long as its weight, of its first letter.
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
		fmt.Fprintf(out, "%-12s %11.1f %11.1f %11.1f\n", name, percent(right, rounds[:half]), percent(right, rounds[half:]), percent(right, rounds))
	}
	for i, name := range selection.Models {
		line(name, func(rounds []round) int { return modelRight(rounds, i) })
	}
	line("application", applicationRight)
}

func percent(right func([]round) int, rounds []round) float64 {
	return 100 * float64(right(rounds)) / float64(len(rounds))
}

// applicationRight is in how many rounds the application was.
func applicationRight(rounds []round) (n int) {
	for _, r := range rounds {
		if r.right {
			n++
		}
	}
	return n
}

// modelRight is in how many rounds a model was.
func modelRight(rounds []round, model int) (n int) {
	for _, r := range rounds {
		if r.single[model] {
			n++
		}
	}
	return n
}
