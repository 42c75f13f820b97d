package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shivad/shivad/bench/load"
	"github.com/shivad/shivad/shiva/plural"
)

// benchReport is the measurement of bench; its JSON is the output of --json.
type benchReport struct {
	Route   string `json:"route"`
	Door    string `json:"door"`
	Address string `json:"address"`
	loadReport
	Clients *clientsReport `json:"clients,omitempty"` // beside the load
	Search  *searchReport  `json:"search,omitempty"`
	Ended   string         `json:"ended,omitempty"`
}

// A loadReport is the measurement of one load.
type loadReport struct {
	Seconds    float64        `json:"seconds"`
	Offered    float64        `json:"offered,omitempty"` // per second; 0: a closed loop
	Think      string         `json:"think,omitempty"`   // of a closed loop
	Sent       int64          `json:"sent"`
	Answered   int64          `json:"answered"`
	Failed     int64          `json:"failed"`
	Unanswered int64          `json:"unanswered"`
	Superseded int64          `json:"superseded,omitempty"`
	Rate       float64        `json:"rate"` // good answers per second
	Latency    latencies      `json:"latency_ms"`
	Late       latencies      `json:"sent_late_ms"`
	Errors     []benchError   `json:"errors"`
	Streams    []streamReport `json:"streams,omitempty"`
}

// A clientsReport is the measurement of the clients beside another load.
type clientsReport struct {
	Number int `json:"number"`
	loadReport
}

type latencies struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	P4   float64 `json:"p99_99"`
	Max  float64 `json:"max"`
}

type benchError struct {
	Kind  string `json:"kind"`
	Count int64  `json:"count"`
	First string `json:"first"`
}

type streamReport struct {
	Answered   int64 `json:"answered"`
	Superseded int64 `json:"superseded"`
	Failed     int64 `json:"failed"`
}

type searchReport struct {
	Promise string        `json:"promise"`
	Rate    float64       `json:"rate"`              // 0: none
	Clients int           `json:"clients,omitempty"` // that have this rate
	Trials  []trialReport `json:"trials"`
}

type trialReport struct {
	Rate         float64 `json:"rate"`
	Clients      int     `json:"clients,omitempty"`
	Seconds      float64 `json:"seconds"`
	Requests     int64   `json:"requests"`
	InTime       int64   `json:"in_time"`
	Failed       int64   `json:"failed"`
	MS           float64 `json:"ms"` // the promise's percentile
	Late         float64 `json:"sent_late_ms"`
	Holds        bool    `json:"holds"`
	Confirmation bool    `json:"confirmation"`
}

// ms returns milliseconds, rounded to the microsecond.
func ms(d time.Duration) float64 { return math.Round(float64(d)/1e3) / 1e3 }

func latenciesOf(h *load.Histogram) latencies {
	at := func(q float64) float64 { return ms(h.Quantile(q)) }
	return latencies{ms(h.Mean()), at(0.5), at(0.9), at(0.99), at(0.999), at(0.9999), ms(h.Max())}
}

// take fills the report with the result of a run.
func (b *loadReport) take(r *load.Result) {
	b.Seconds, b.Offered = r.Elapsed.Seconds(), r.Offered
	b.Answered, b.Failed, b.Unanswered, b.Superseded = r.Latency.Count(), r.Refusal.Count(), r.Lost, r.Superseded
	b.Sent = b.Answered + b.Failed + b.Unanswered + b.Superseded
	if r.Elapsed > 0 {
		b.Rate = r.Rate()
	}
	b.Latency, b.Late = latenciesOf(&r.Latency), latenciesOf(&r.Lag)
	b.Errors = []benchError{}
	for _, f := range r.Faults {
		b.Errors = append(b.Errors, benchError(f))
	}
	for _, s := range r.PerStream {
		b.Streams = append(b.Streams, streamReport(s))
	}
}

// searched adds the trials of a search.
func (b *benchReport) searched(p load.Promise, rate float64, trials []load.Trial) {
	b.Search = &searchReport{Promise: p.String(), Rate: rate, Trials: []trialReport{}}
	for _, t := range trials {
		b.Search.Trials = append(b.Search.Trials,
			trialReport{t.Rate, t.Clients, t.Length.Seconds(), t.Requests, t.Kept, t.Failed, ms(t.At), ms(t.Lag),
				t.Holds(p), t.Last})
	}
}

// thinks adds the clients' think time, if one was asked for.
func (b *loadReport) thinks(o *benchOptions) {
	if o.think != nil {
		b.Think = o.think.String()
	}
}

// anyFailed reports whether requests failed, or were not answered.
func (b *benchReport) anyFailed() bool {
	n := b.Failed + b.Unanswered
	if b.Clients != nil {
		n += b.Clients.Failed + b.Clients.Unanswered
	}
	return n > 0
}

// print prints the report for people.
func (b *bench) print(r, clients *load.Result) {
	w := b.stdout
	report := &b.report
	fmt.Fprintf(w, "%s over %s at %s: %s\n", report.Route, report.Door, report.Address, b.what())
	fmt.Fprintf(w, "each request: %s\n\n", strings.Join(b.inputs, ", "))
	if report.Search != nil {
		b.printSearch(report.Search)
	}
	if report.Ended != "" {
		fmt.Fprintf(w, "ended after %.1f s: %s\n\n", report.Seconds, report.Ended)
	}
	if clients == nil {
		b.printLoad(&report.loadReport, r)
		return
	}
	fmt.Fprintf(w, "%s\n", b.offered())
	b.printLoad(&report.loadReport, r)
	fmt.Fprintf(w, "\n%s\n", b.o.loop(b.o.clients, "client"))
	b.printLoad(&report.Clients.loadReport, clients)
}

// printLoad prints the measurement of a load.
func (b *bench) printLoad(report *loadReport, r *load.Result) {
	w := b.stdout
	share := func(n int64) string {
		return fmt.Sprintf("%.2f %%", 100*float64(n)/float64(max(report.Sent, 1)))
	}
	t := newGrid("\t\t\t", "")
	t.right = true
	t.add("sent\t%d", report.Sent)
	t.add("answered\t%d\t%s\t%.1f/s", report.Answered, share(report.Answered), report.Rate)
	if report.Streams != nil {
		t.add("superseded\t%d\t%s", report.Superseded, share(report.Superseded))
	}
	t.add("failed\t%d\t%s", report.Failed, share(report.Failed))
	if report.Unanswered > 0 {
		t.add("unanswered\t%d\t%s", report.Unanswered, share(report.Unanswered))
	}
	_ = t.write(w, b.width())
	for _, e := range report.Errors {
		fmt.Fprintf(w, "  %d x %s, the first: %s\n", e.Count, e.Kind, oneLine(e.First))
	}
	if report.Streams != nil {
		b.printStreams(report)
	}
	if report.Offered > 0 {
		fmt.Fprintf(w, "sent late by this tool: p50 %s, p99 %s, at most %s\n", milliseconds(report.Late.P50),
			milliseconds(report.Late.P99), milliseconds(report.Late.Max))
		if report.Answered > 0 && report.Late.P99 > report.Latency.P99/tolerable {
			fmt.Fprintln(w, "  that is a large part of the latencies below: give this tool more processor time, or lower the rate")
		}
	}
	if report.Answered == 0 {
		fmt.Fprintln(w, "\nno request succeeded, so there are no latencies")
		return
	}
	title := "latency, from when each request was due"
	switch {
	case report.Streams != nil:
		title = "age of the frames that were answered, from when each was due"
	case report.Offered == 0:
		title = "latency, from when each request was sent"
	}
	fmt.Fprintf(w, "\n%s\n", title)
	fmt.Fprint(w, percentileChart(&r.Latency, columns(w), unicodeTerminal()))
}

// tolerable divides the p99 latency: the report mentions this tool's own lateness only above that.
const tolerable = 10

// what describes the whole load.
func (b *bench) what() string {
	length := fmt.Sprintf("for %v", b.o.length)
	switch {
	case b.o.search != nil && b.o.think != nil:
		return fmt.Sprintf("the largest number of clients with %v%s", b.o.search, b.o.thinking())
	case b.o.search != nil:
		return fmt.Sprintf("the highest rate with %v, on %s", b.o.search, plural.Of(b.config.Conns, "connection"))
	case b.beside != nil:
		return fmt.Sprintf("%s, beside %s, %s", b.offered(), b.o.loop(b.o.clients, "client"), length)
	default:
		return fmt.Sprintf("%s, %s", b.offered(), length)
	}
}

// offered describes the load, without the clients beside it.
func (b *bench) offered() string {
	conns := plural.Of(b.config.Conns, "connection")
	switch {
	case b.o.streams > 0:
		keep := ""
		if b.o.keep != "" {
			keep = " that keep " + b.o.keep
		}
		return fmt.Sprintf("%s of %g frames/s%s, on %s", plural.Of(b.o.streams, "stream"), b.o.fpsOrDefault(),
			keep, conns)
	case b.o.rate > 0:
		return fmt.Sprintf("%g requests/s at random, on %s", b.o.rate, conns)
	case b.o.clients > 0:
		return "a closed loop of " + b.o.loop(b.o.clients, "client")
	default:
		return "a closed loop of " + b.o.loop(b.config.Conns, "connection")
	}
}

// loop describes n clients, or connections, that wait for each answer.
func (o *benchOptions) loop(n int, of string) string {
	return fmt.Sprintf("%s with %d in flight on each%s", plural.Of(n, of), max(o.inFlight, 1), o.thinking())
}

// thinking describes the time that clients think.
func (o *benchOptions) thinking() string {
	t := o.thinks()
	switch {
	case t.Mean == 0:
		return ""
	case t.Random:
		return fmt.Sprintf(", %v after each answer on average", t.Mean)
	default:
		return fmt.Sprintf(", %v after each answer", t.Mean)
	}
}

// printStreams shows how evenly the streams were served.
func (b *bench) printStreams(report *loadReport) {
	least, most := report.Streams[0].Answered, report.Streams[0].Answered
	for _, s := range report.Streams {
		least, most = min(least, s.Answered), max(most, s.Answered)
	}
	all := float64(max(report.Answered, 1))
	fmt.Fprintf(b.stdout, "each stream had %s of the answers, %s %%\n", span("%d", least, most),
		span("%.1f", 100*float64(least)/all, 100*float64(most)/all))
}

// span writes a range, or the one number that both of its ends are written as.
func span[N int | int64 | float64](format string, least, most N) string {
	from, to := fmt.Sprintf(format, least), fmt.Sprintf(format, most)
	if from == to {
		return from
	}
	return from + " to " + to
}

func (b *bench) printSearch(s *searchReport) {
	percentile, _, _ := strings.Cut(s.Promise, "<")
	t := newGrid("clients\trate\tfor\trequests\tin time\tfailed\t"+percentile+"\tsent late\t", "")
	t.right = true
	for _, one := range s.Trials {
		verdict := "breaks"
		if one.Holds {
			verdict = "holds"
		}
		if one.Confirmation {
			verdict += ", confirming"
		}
		t.add("%d\t%.1f/s\t%.1f s\t%d\t%.2f %%\t%d\t%s\t%s\t%s", one.Clients, one.Rate, one.Seconds, one.Requests,
			100*float64(one.InTime)/float64(max(one.Requests, 1)), one.Failed, milliseconds(one.MS),
			milliseconds(one.Late), verdict)
	}
	ofClients := b.o.think != nil
	if !ofClients {
		t.leaveOut("clients")
	}
	_ = t.write(b.stdout, b.width())
	switch {
	case s.Clients > 0:
		fmt.Fprintf(b.stdout, "\nthe largest number of clients with %s is %d, which have %.1f/s; their last run:\n\n",
			s.Promise, s.Clients, s.Rate)
	case ofClients:
		fmt.Fprintf(b.stdout, "\nnot even one client has %s; the last run:\n\n", s.Promise)
	case s.Rate > 0:
		fmt.Fprintf(b.stdout, "\nthe highest rate with %s is %.1f/s; its last run:\n\n", s.Promise, s.Rate)
	default:
		fmt.Fprintf(b.stdout, "\nno rate was found with %s; the last run:\n\n", s.Promise)
	}
}

// milliseconds formats n with three digits or more, which suits microseconds as well as seconds.
func milliseconds(n float64) string {
	switch {
	case n < 10:
		return fmt.Sprintf("%.2f ms", n)
	case n < 100:
		return fmt.Sprintf("%.1f ms", n)
	default:
		return fmt.Sprintf("%.0f ms", n)
	}
}

// oneLine returns the beginning of a text, without line breaks.
func oneLine(text string) string {
	const most = 300
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
