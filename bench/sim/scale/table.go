package main

import (
	"fmt"
	"strings"
	"time"
)

// A table is a table in Markdown.
type table struct{ strings.Builder }

func (t *table) row(cells ...any) {
	for _, c := range cells {
		fmt.Fprintf(t, "| %v ", c)
	}
	t.WriteString("|\n")
}

func newTable(columns ...any) *table {
	t := &table{}
	t.row(columns...)
	t.WriteString(strings.Repeat("| ---: ", len(columns)) + "|\n")
	return t
}

// number formats n with commas between thousands.
func number(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// curveTable shows fleets of several sizes, each below and above its capacity.
func curveTable(results []*Result) string {
	t := newTable("servers", "in time at 0.8", "at 1.2", "p50", "p99", "rows of an execution", "messages a frame", "sessions of a server")
	for i := 0; i+1 < len(results); i += 2 {
		r, over := results[i], results[i+1]
		t.row(number(r.Fleet.Servers), fmt.Sprintf("%.4f", r.Share()), fmt.Sprintf("%.3f", over.Share()),
			r.P50.Round(10*time.Millisecond), r.P99.Round(10*time.Millisecond),
			fmt.Sprintf("%.1f", r.perExecution()), r.perFrame(), r.Sessions)
	}
	return t.String()
}

// eventTable shows a fleet under each event.
func eventTable(acts []act, results []*Result) string {
	t := newTable("what happens", "in time, of the oracle's", "in the worst half second", "sessions that moved", "that were tried", "attempts", "streams that moved", "streams of a server", "containers: needed, there")
	for i, r := range results {
		t.row(acts[i].name, fmt.Sprintf("%.4f", r.Share()), fmt.Sprintf("%.2f", r.worst()),
			fmt.Sprintf("%s (%.1f %%)", number(r.Begun), 100*float64(r.Begun)/float64(r.Fleet.sessions())), number(r.Tried), number(r.Attempts), number(r.Moved), r.Connected,
			fmt.Sprintf("%s, %s", number(last(r.Needed)), number(last(r.Had))))
	}
	return t.String()
}

// trafficTable shows the load of Redis under each event, in its busiest second.
func trafficTable(acts []act, results []*Result) string {
	t := newTable("what happens", "looks", "feedback", "loads", "operations", "messages to servers", "busy", "the busiest of 4", "of 16")
	for i, r := range results {
		one := r.busiest(1)
		t.row(acts[i].name, whole(one.looks), whole(one.feedback), whole(one.loads), whole(one.operations()), whole(one.messages), busy(one), busy(r.busiest(4)), busy(r.busiest(shards)))
	}
	return t.String()
}

func last(list []int) int {
	if len(list) == 0 {
		return 0
	}
	return list[len(list)-1]
}

func (s Spread) String() string { return fmt.Sprintf("%d to %d", s.Least, s.Most) }

// sessions is the intended number of sessions in the fleet.
func (f Fleet) sessions() int { return f.Containers * min(f.subset(), f.Servers) }

func (r *Result) perExecution() float64 { return float64(r.Rows) / float64(max(1, r.Executions)) }

// perFrame is the number of messages per frame, in total and by kind.
func (r *Result) perFrame() string {
	share := func(names ...string) float64 {
		n := 0
		for _, name := range names {
			n += r.Messages[name]
		}
		return float64(n) / float64(max(1, r.Offered))
	}
	return fmt.Sprintf("%.2f (%.2f, %.2f, %.2f, %.2f)", share(kindNames[:]...), share("offers", "passes"), share("grants"), share("batches"), share("results"))
}

// worst is the lowest goodput of any bin, as a share of the oracle's.
func (r *Result) worst() float64 {
	least := 1.0
	for _, b := range r.Bins {
		if b.Best > 0 {
			least = min(least, float64(b.Good)/float64(b.Best))
		}
	}
	return least
}
