package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/plural"
)

// defaultColumns is the width of the output when it is not a terminal.
const defaultColumns = 80

// columns returns the width of w's terminal.
func columns(w io.Writer) int {
	if _, n := terminalOf(w); n > 0 {
		return n
	}
	return defaultColumns
}

// unicodeTerminal reports whether the locale allows more than ASCII.
func unicodeTerminal() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if locale := os.Getenv(name); locale != "" {
			locale = strings.ToLower(locale)
			return strings.Contains(locale, "utf-8") || strings.Contains(locale, "utf8")
		}
	}
	return false
}

// chartPercentiles are the bars of a chart. One is shown if at least one duration is beyond it.
var chartPercentiles = []struct {
	name  string
	share float64
}{{"p50", 0.5}, {"p75", 0.75}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p99.9", 0.999}, {"p99.99", 0.9999}, {"max", 1}}

// percentileChart draws a bar for each percentile, width columns wide.
func percentileChart(h *load.Histogram, width int, unicode bool) string {
	var b strings.Builder
	for _, p := range chartPercentiles {
		if p.share < 1 && (1-p.share)*float64(h.Count()) < 1 {
			continue
		}
		d := h.Quantile(p.share)
		label := fmt.Sprintf("  %-6s %10s  ", p.name, milliseconds(ms(d)))
		room := max(width-utf8.RuneCountInString(label)-1, 10)
		fmt.Fprintln(&b, strings.TrimRight(label+bar(float64(d)/float64(max(h.Max(), 1)), room, unicode), " "))
	}
	return b.String()
}

// bar draws a share of room columns, to an eighth of a column in Unicode.
func bar(share float64, room int, unicode bool) string {
	if !unicode {
		return strings.Repeat("#", int(share*float64(room)+0.5))
	}
	const eighths = " ▏▎▍▌▋▊▉"
	n := int(share*float64(room)*8 + 0.5)
	text := strings.Repeat("█", n/8)
	if rest := n % 8; rest > 0 {
		text += string([]rune(eighths)[rest])
	}
	return text
}

// moments tells the progress of a run.
func (b *bench) moments(config load.Config) (stop func()) {
	return b.progress(func(elapsed time.Duration) string { return liveText(config, elapsed, config.Live.Take()) })
}

// liveText is the line for a second.
func liveText(config load.Config, at time.Duration, m load.Moment) string {
	all := config.Warmup + config.Duration
	text := fmt.Sprintf("%.0f of %.0f s", at.Seconds(), all.Seconds())
	if at > all {
		text = "waiting for the last answers"
	}
	if config.Rate > 0 {
		text += fmt.Sprintf(", %.0f/s", config.Rate)
	}
	text += fmt.Sprintf(": %s, p50 %s, p99 %s", plural.Of(m.Latency.Count(), "answer"),
		milliseconds(ms(m.Latency.Quantile(0.5))), milliseconds(ms(m.Latency.Quantile(0.99))))
	if m.Superseded > 0 {
		text += fmt.Sprintf(", %d superseded", m.Superseded)
	}
	if m.Failed > 0 {
		text += fmt.Sprintf(", %d failed", m.Failed)
	}
	return text
}

// tried shows a finished trial of a search, if there is a terminal.
func (b *bench) tried(t load.Trial) {
	f, _ := terminalOf(b.stderr)
	if f == nil {
		return
	}
	verdict := "breaks"
	if t.Holds(*b.o.search) {
		verdict = "holds"
	}
	if t.Clients > 0 {
		fmt.Fprintf(f, "%s: ", plural.Of(t.Clients, "client"))
	}
	fmt.Fprintf(f, "%.1f/s for %.1f s: %.2f %% in time, %s\n", t.Rate, t.Length.Seconds(),
		100*float64(t.Kept)/float64(max(t.Requests, 1)), verdict)
}
