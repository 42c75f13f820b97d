package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) topCommand() *cobra.Command {
	o := &topOptions{}
	every := usualRefresh
	cmd := &cobra.Command{
		Use: "top", Short: "live view of model activity",
		Long: `Shows a line for each version of a model and for each application, the busiest first, with what
happened since the last refresh. LOAD is the number of replicas that the requests need. REQUESTS/S are answered
requests; FAILED/S are those of them that got an error. P50 and P99 are latencies, accurate to about 25 %. IN TIME is
the share of requests that had a result within the SLO; a default output does not count as a result. Requests that
their client withdrew (superseded, canceled, or hung up) or got wrong are left out. WAITING is the number of rows that
wait now, and the age of the oldest. Below are at most 20 streams, with the age of their newest answers and who waits
for them, and the clients that a quota has refused something in the last minute. It ends with Ctrl-C, or after --count
refreshes. shivactl status and explain show more.

On a terminal it shows one table at a time. These keys change the view:

  m, p, s       show models, pipelines or streams
  r 9 l w f n   sort models by requests/s, p99, load, waiting rows, failures or name; the last line lists the keys of other tables
  left, right   sort by another column
  up, down      scroll
  /             show only names that contain a text; Esc shows all
  q, Ctrl-C     end

With --json: a document each time: {"version", "ready", "reason", "uptime_seconds", "span_seconds", "warnings",
"requests_per_second", "models": [{"name", "version" ("" of an application), "replicas", "failing", "load", "queue_rows",
"oldest_row_seconds", "requests_per_second", "failed_per_second", "p50_seconds", "p99_seconds", "in_time" (null as these two
without requests), "streams", "frame_age_seconds"}], "clients": [{"name", "requests_per_second", "bytes_per_second", "over":
[{"quota", "limit", "refused_per_second"}]}], "streams": [as shivactl status shows them]}
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		PreRun: func(*cobra.Command, []string) { c.every = every },
		RunE: func(cmd *cobra.Command, args []string) error {
			if keyboard, ok := c.keyboardAndScreen(); ok && !c.json {
				return c.live(keyboard, o)
			}
			return c.asks(func(c *cli, _ []string) error { return c.top(o) })(cmd, args)
		},
	}
	cmd.Flags().Var(value[time.Duration]{&every, parseRefresh, usualRefresh.String()}, "every", "refresh every `TIME`")
	cmd.Flags().Var(value[int]{&o.count, count, ""}, "count", "end after `N` refreshes")
	return cmd
}

type topOptions struct {
	count int // 0: for ever
	shown int
	last  *admin.Status
}

// firstSpan is the time over which the first rates are measured; the user waits for it.
const firstSpan = 500 * time.Millisecond

func (c *cli) top(o *topOptions) error {
	t, now, err := c.measureTop(o)
	if err != nil {
		return err
	}
	err = c.printTop(&t, &now)
	if o.shown++; err == nil && o.shown == o.count {
		return errEnough
	}
	return err
}

// measureTop asks the server what has happened since it was asked before.
func (c *cli) measureTop(o *topOptions) (t top, now admin.Status, err error) {
	if err := c.get("/v1/status", &now); err != nil {
		o.last = nil
		return t, now, err
	}
	if o.last == nil || !o.last.Started.Equal(now.Started) { // first call, or restarted server
		before := now
		o.last = &before
		if !backoff.Wait(min(firstSpan, c.every), c.ctx.Done()) {
			return t, now, explain(c.ctx.Err(), "--admin", c.admin)
		}
		now = admin.Status{}
		if err := c.get("/v1/status", &now); err != nil {
			o.last = nil
			return t, now, err
		}
	}
	t = topOf(o.last, &now)
	last := now
	o.last = &last
	return t, now, nil
}

// The JSON output of top; the help documents it.
type (
	top struct {
		Version   string               `json:"version"`
		Ready     bool                 `json:"ready"`
		Reason    string               `json:"reason,omitempty"`
		Uptime    float64              `json:"uptime_seconds"`
		Span      float64              `json:"span_seconds"`
		Warnings  int                  `json:"warnings"`
		Requests  float64              `json:"requests_per_second"`
		Models    []topModel           `json:"models"`
		Pipelines []admin.PipelineLoad `json:"pipelines,omitempty"` // in the last minute
		Clients   []topClient          `json:"clients"`

		Streams []admin.Seen `json:"streams"`
	}
	topModel struct {
		Name      string   `json:"name"`
		Version   string   `json:"version"`
		Kind      string   `json:"kind,omitempty"`
		Replicas  int      `json:"replicas"`
		Failing   int      `json:"failing"`
		Load      float64  `json:"load"` // replicas that the requests need
		QueueRows int      `json:"queue_rows"`
		OldestRow float64  `json:"oldest_row_seconds"`
		Requests  float64  `json:"requests_per_second"`
		Failed    float64  `json:"failed_per_second"`
		P50       *float64 `json:"p50_seconds"`
		P99       *float64 `json:"p99_seconds"`
		InTime    *float64 `json:"in_time"`
		Streams   int      `json:"streams"`
		FrameAge  float64  `json:"frame_age_seconds"`
	}
	topClient struct {
		Name     string     `json:"name"`
		Requests float64    `json:"requests_per_second"`
		Bytes    float64    `json:"bytes_per_second"`
		Over     []topQuota `json:"over"`
	}
	topQuota struct {
		Quota   string  `json:"quota"`
		Limit   int64   `json:"limit"`
		Refused float64 `json:"refused_per_second"`
	}
)

// lately is the time in seconds after a refusal for which a client counts as over its quota.
const lately = 60

// topOf computes rates and quantiles between two statuses of one server.
func topOf(before, now *admin.Status) top {
	span := max(now.Uptime-before.Uptime, 0.001)
	t := top{
		Version: now.Version, Ready: now.Readiness.Ready, Reason: now.Readiness.Reason, Uptime: now.Uptime, Span: span,
		Warnings: len(now.Warnings), Models: []topModel{}, Pipelines: now.Pipelines, Clients: []topClient{},
		Streams: append([]admin.Seen{}, now.Streams...),
	}
	for _, h := range now.Models {
		old := admin.Health{}
		same := func(b admin.Health) bool { return b.Name == h.Name && b.Version == h.Version }
		if i := slices.IndexFunc(before.Models, same); i >= 0 {
			old = before.Models[i]
		}
		m := topModel{
			Name: h.Name, Version: h.Version, Replicas: h.Replicas, Failing: h.Failing, Load: h.Load,
			QueueRows: h.QueueRows,
			OldestRow: h.OldestRow, Streams: h.Streams, FrameAge: h.FrameAge,
			Failed: float64(since(h.Failed, old.Failed)) / span,
		}
		if h.Version == "" {
			m.Kind = kindOf(h)
		}
		if requests := since(h.Requests, old.Requests); requests > 0 {
			m.Requests = float64(requests) / span
			if judged := since(h.Judged, old.Judged); judged > 0 {
				share := min(1, float64(since(h.InTime, old.InTime))/float64(judged))
				m.InTime = &share
			}
			m.P50, m.P99 = quantile(h.Durations, old.Durations, 0.5), quantile(h.Durations, old.Durations, 0.99)
			if h.Version != "" { // others are also counted at their models
				t.Requests += m.Requests
			}
		}
		t.Models = append(t.Models, m)
	}
	slices.SortStableFunc(t.Models, func(a, b topModel) int { return cmp.Compare(b.Requests, a.Requests) })
	for _, k := range now.Clients {
		old := admin.Client{}
		if i := slices.IndexFunc(before.Clients, func(b admin.Client) bool { return b.Name == k.Name }); i >= 0 {
			old = before.Clients[i]
		}
		one := topClient{Name: k.Name, Requests: float64(since(k.Requests, old.Requests)) / span,
			Bytes: float64(since(k.Bytes, old.Bytes)) / span}
		for _, q := range k.Quotas {
			if q.Refused == 0 || q.Since > lately {
				continue
			}
			refused := q.Refused
			if i := slices.IndexFunc(old.Quotas, func(b admin.Quota) bool { return b.Quota == q.Quota }); i >= 0 {
				refused = since(q.Refused, old.Quotas[i].Refused)
			}
			one.Over = append(one.Over, topQuota{q.Quota, q.Limit, float64(refused) / span})
		}
		if one.Over != nil {
			t.Clients = append(t.Clients, one)
		}
	}
	return t
}

// since returns the increase of a count. Counts restart at 0 when the counted object disappears and
// comes back.
func since[T int64 | uint64](now, before T) T {
	if now < before {
		return now
	}
	return now - before
}

// quantile returns the time, in seconds, within which a share of the requests between two counts
// were answered; nil if there were none. Within a class it assumes that the logarithms of times are
// evenly distributed; for the last class, which has no end, it returns the beginning.
func quantile(now, before []admin.DurationClass, share float64) *float64 {
	counts, total := make([]uint64, len(now)), uint64(0)
	for i, k := range now {
		old := uint64(0)
		if j := slices.IndexFunc(before, func(b admin.DurationClass) bool { return b.Above == k.Above }); j >= 0 {
			old = before[j].Requests
		}
		counts[i] = since(k.Requests, old)
		total += counts[i]
	}
	rank := share * float64(total)
	for i, k := range now {
		n := float64(counts[i])
		if n == 0 || rank > n {
			rank -= n
			continue
		}
		at := k.Above
		if k.UpTo > 0 {
			from := cmp.Or(k.Above, k.UpTo/2)
			at = from * math.Pow(k.UpTo/from, max(rank, 0)/n)
		}
		return &at
	}
	return nil
}

func (c *cli) printTop(t *top, s *admin.Status) error {
	if c.json {
		return c.printJSON(t)
	}
	c.printTopHead(t, s)
	if len(t.Models) == 0 {
		fmt.Fprintln(c.stdout, "no models: no container has connected yet")
		return nil
	}
	for i, g := range []*grid{modelGrid(t.Models), stageGrid(t.Pipelines), seenGrid(t.Streams), quotaGrid(t.Clients)} {
		if len(g.rows) == 0 {
			continue
		}
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		if err := g.write(c.stdout, c.width()); err != nil {
			return err
		}
	}
	return nil
}

// printTopHead prints what is true of the whole server, and an empty line.
func (c *cli) printTopHead(t *top, s *admin.Status) {
	state := "ready"
	if !t.Ready {
		state = "NOT READY: " + t.Reason
	}
	fmt.Fprintf(c.stdout, "shivad %s at %s, up %s: %s\n", t.Version, c.admin, seconds(t.Uptime), state)
	line := []string{rate(t.Requests) + " requests/s", plural.Of(s.Queue.Rows, "row") + " waiting"}
	for _, d := range s.Doors {
		line = append(line, fmt.Sprintf("%s %s, %d in flight", d.Name, plural.Of(d.Connections, "connection"),
			d.InFlight))
	}
	line = append(line, fmt.Sprintf("payload memory %s of %s", size(s.Payload.Used), size(s.Payload.Limit)))
	g := newGrid("", "")
	g.add("%s", strings.Join(line, " · "))
	_ = g.write(c.stdout, c.width()) // into memory, or the next line fails
	if t.Warnings > 0 {
		fmt.Fprintf(c.stdout, "! %s: shivactl status\n", plural.Of(t.Warnings, "warning"))
	}
	fmt.Fprintln(c.stdout)
}

// modelGrid has a row for each version of a model, and for each name that stands for models.
func modelGrid(models []topModel) *grid {
	g := newGrid("MODEL\tREPLICAS\tLOAD\tWAITING\tREQUESTS/S\tFAILED/S\tP50\tP99\tIN TIME\tSTREAMS\tFRAME AGE",
		"STREAMS\tFRAME AGE\tP50\tREPLICAS\tLOAD\tFAILED/S")
	for _, m := range models {
		name, replicas, waiting, inTime := m.Name+"/"+m.Version, fmt.Sprint(m.Replicas), fmt.Sprint(m.QueueRows), "-"
		if m.Version == "" {
			name, waiting = m.Name+" ("+m.Kind+")", "-"
		}
		if m.Failing > 0 {
			replicas += fmt.Sprintf(", %d FAILING", m.Failing)
		}
		if m.QueueRows > 0 {
			waiting += " for " + roughly(m.OldestRow)
		}
		if m.InTime != nil {
			inTime = fmt.Sprintf("%.4g %%", 100**m.InTime)
		}
		g.add("%s\t%s\t%.2g\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s", name, replicas, m.Load, waiting, rate(m.Requests),
			rate(m.Failed), durationText(m.P50), durationText(m.P99), inTime, m.Streams, millis(m.FrameAge))
	}
	return g
}

// quotaGrid has a row for each quota that has refused something.
func quotaGrid(clients []topClient) *grid {
	g := newGrid("OVER A QUOTA\tREQUESTS/S\tBYTES/S\tQUOTA\tLIMIT\tREFUSED/S", "BYTES/S\tREQUESTS/S")
	for _, k := range clients {
		head := fmt.Sprintf("%s\t%s\t%s", k.Name, rate(k.Requests), size(int64(k.Bytes)))
		for _, q := range k.Over {
			g.add("%s\t%s\t%s\t%s", head, q.Quota, amount(q.Quota, q.Limit), rate(q.Refused))
			head = "\t\t"
		}
	}
	return g
}

// rate formats a number per second with about three digits.
func rate(n float64) string {
	if n < 100 {
		return fmt.Sprintf("%.3g", n)
	}
	return fmt.Sprintf("%.0f", n)
}

// durationText formats a time with two digits; "-" for none.
func durationText(s *float64) string {
	if s == nil {
		return "-"
	}
	return roughly(*s)
}

// roughly formats a span of time with two digits.
func roughly(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d <= 0 {
		return "0s"
	}
	digit := time.Duration(math.Pow10(max(0, int(math.Log10(float64(d)))-1)))
	return d.Round(digit).String()
}
