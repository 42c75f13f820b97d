package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) statusCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "status", Short: "show the state of the server, its models and containers",
		Long: `With --json: what GET /v1/status of the admin API gives: {"host", "version", "pid", "started", "uptime_seconds",
"readiness": {"ready", "state", "reason", "degraded"}, "warnings": [...], "listen": {...}, "doors": [...],
"clients": [{"name", "requests", "bytes", "quotas": [{"quota", "limit", "used", "refused", "refused_seconds"}]}],
"payload_bytes": {"used", "limit", "refused"}, "shared_bytes": {"inputs", "used", "readable", "replaced", "limit", "outputs"},
"queue": {"rows", "bytes", "oldest_row_seconds", "oldest_batch_seconds"},
"models": [...], "pipelines": [{"name", "stages": [...]}], "routes": [{"name", "to", "ready", "hides"}], "newest": {"bytes", "limit", "streams", "waiting", "answered", "failed", "evicted"}, "streams": [{"model", "name",
"connection", "client", "identity", "known", "age_seconds" (null: no answer), "waiting", "askers": [...]}],
"state": {"at", "healthy", "since", "error"}, "sessions": [...], "processes": [...], "limits": {...}}

The exit code is 0 whenever the server answers, ready or not.
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.status() }),
	})
}

func (c *cli) status() error {
	return fetch(c, "/v1/status", c.printStatus)
}

func (c *cli) printStatus(s admin.Status) error {
	state := "ready"
	if !s.Readiness.Ready {
		state = "NOT READY: " + s.Readiness.Reason
	}
	fmt.Fprintf(c.stdout, "shivad %s, up %s, pid %d: %s\n\n", s.Version, seconds(s.Uptime), s.PID, state)

	for _, text := range s.Warnings {
		fmt.Fprintf(c.stdout, "! %s\n", text)
	}
	if len(s.Warnings) > 0 {
		fmt.Fprintln(c.stdout)
	}

	if err := c.writeWithLine(statusLines(s)); err != nil {
		return err
	}
	if err := c.printHealth(s.Models); err != nil {
		return err
	}
	if err := c.printStages(s.Pipelines); err != nil {
		return err
	}
	if err := c.printRoutes(s.Routes); err != nil {
		return err
	}
	if err := c.printSeen(s.Streams); err != nil {
		return err
	}
	if err := c.printClients(s.Clients); err != nil {
		return err
	}
	if err := c.printSessions(s.Sessions); err != nil {
		return err
	}
	if len(s.Processes) == 0 {
		return nil
	}
	fmt.Fprintln(c.stdout)
	g := newGrid("PROCESS\tPID\tSTATE\tFOR\tRESTARTS\tLAST EXIT", "PID\tFOR")
	for _, p := range s.Processes {
		pid := "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		g.add("%s[%d]\t%s\t%s\t%s\t%d\t%s", p.Name, p.Replica, pid, p.State, seconds(p.Since), p.Restarts,
			cmp.Or(p.LastExit, "-"))
	}
	if err := g.write(c.stdout, c.width()); err != nil {
		return err
	}
	// Show the logs of processes that were restarted, or failed.
	for _, p := range s.Processes {
		if p.Restarts > 0 && len(p.Log) > 0 {
			fmt.Fprintf(c.stdout, "\nlast lines of %s[%d]:\n  %s\n", p.Name, p.Replica, strings.Join(p.Log, "\n  "))
		}
	}
	return nil
}

// statusLines are the addresses of a server, and what all of it does.
func statusLines(s admin.Status) *grid {
	g := newList()
	add := func(name, text string) { g.add("%s\t%s", name, text) }
	listen := func(name string, addrs ...string) { add(name, cmp.Or(strings.Join(addrs, ", "), "off")) }
	for name, addrs := range s.Listen.Doors() {
		if name != "frigate" {
			listen("clients ("+name+")", *addrs...)
		} else if *addrs != nil {
			listen("detectors (frigate)", *addrs...)
		}
	}
	listen("containers", s.Listen.Containers...)
	for _, l := range []struct {
		name  string
		addrs []string
	}{{"containers (v1b)", s.Listen.V1b}, {"containers (v2)", s.Listen.V2}, {"containers (v2a)", s.Listen.V2a}} {
		if l.addrs != nil {
			listen(l.name, l.addrs...)
		}
	}
	listen("admin (http)", s.Listen.Admin)
	for _, d := range s.Doors {
		add("endpoint "+d.Name, plural.Of(d.Connections, "connection")+", "+plural.Of(d.InFlight, "request")+" in flight")
	}
	waiting := plural.Of(s.Queue.Rows, "row") + ", " + size(s.Queue.Bytes)
	if s.Queue.Rows > 0 {
		waiting += ", the oldest for " + seconds(s.Queue.OldestRow)
	}
	add("waiting", waiting)
	memory := size(s.Payload.Used) + " of " + size(s.Payload.Limit)
	if s.Payload.Refused > 0 {
		memory += ", refused " + plural.Of(s.Payload.Refused, "time")
	}
	add("payload memory", memory)
	add("shared memory", sharedMemoryText(s.Shared))
	add("client regions", regionsText(s.Regions))
	add("newest answers", newestText(s.Newest))
	add("state", stateText(s.State, s.Started.Add(time.Duration(s.Uptime*float64(time.Second)))))
	return g
}

// sharedMemoryText formats the part of the payload memory that is shared with containers on the
// server's machine.
func sharedMemoryText(m admin.Shared) string {
	if m.Limit == 0 {
		return "off"
	}
	text := fmt.Sprintf("%s of %s for inputs, %s in use, %s for outputs", size(m.Inputs), size(m.Limit), size(m.Used),
		size(m.Outputs))
	if m.Replaced > 0 {
		text += ", " + size(m.Replaced) + " replaced"
	}
	return text
}

// regionsText formats the amount of shared memory that clients have registered.
func regionsText(r admin.Regions) string {
	if r.Limit == 0 {
		return "off"
	}
	text := fmt.Sprintf("%d of %d, %s", r.Used, r.Limit, size(r.Bytes))
	if r.Made > 0 {
		text += fmt.Sprintf(", %s of the server's", size(r.Made))
	}
	if r.Refused > 0 {
		text += ", refused " + plural.Of(r.Refused, "time")
	}
	return text
}

// stateText tells where the state is stored and, if it cannot be changed, since when and why.
func stateText(s admin.State, now time.Time) string {
	where := cmp.Or(s.At, "in memory")
	if s.Healthy {
		return where
	}
	return fmt.Sprintf("%s: CANNOT BE CHANGED for %s: %s", where, seconds(now.Sub(s.Since).Seconds()), s.Error)
}

// printHealth lists models and applications with the figures that show whether they work.
func (c *cli) printHealth(all []admin.Health) error {
	if len(all) == 0 {
		return nil
	}
	g := newGrid("MODEL\tREPLICAS\tNEEDED\tFAILING\tREQUESTS\tIN TIME\tSLO\tDEFAULTS\tMISSING\tNO MEMORY\t"+
		"OLDEST ROW\tOLDEST BATCH\tSTREAMS\tSUPERSEDED\tFRAME AGE",
		"DEFAULTS\tMISSING\tNO MEMORY\tSUPERSEDED\tOLDEST BATCH\tSTREAMS\tSLO\tNEEDED\tFRAME AGE\tOLDEST ROW\tFAILING")
	for _, h := range all {
		name, share := h.Name+"/"+h.Version, "-"
		if h.Version == "" {
			name = h.Name + " (" + kindOf(h) + ")"
		}
		if h.Judged > 0 {
			share = fmt.Sprintf("%.4g %%", 100*min(1, float64(h.InTime)/float64(h.Judged)))
		}
		slo := "-"
		if h.SLO > 0 {
			slo = time.Duration(h.SLO * float64(time.Second)).Round(time.Microsecond).String()
		}
		g.add("%s\t%d\t%s\t%d\t%d\t%s\t%s\t%d\t%d\t%d\t%s\t%s\t%d\t%d\t%s", name, h.Replicas, needed(h),
			h.Failing, h.Requests, share, slo,
			h.Defaults, h.MissingVoices, h.NoMemory, age(h.OldestRow), age(h.OldestBatch), h.Streams, h.Superseded,
			millis(h.FrameAge))
	}
	return c.writeWithLine(g)
}

// writeWithLine writes a grid with an empty line below.
func (c *cli) writeWithLine(g *grid) error {
	err := g.write(c.stdout, c.width())
	fmt.Fprintln(c.stdout)
	return err
}

// printRoutes prints the names that stand for others.
func (c *cli) printRoutes(all []admin.Route) error {
	if len(all) == 0 {
		return nil
	}
	g := newGrid("ROUTE\tREADY\tTO", "")
	for _, r := range all {
		ready := "no"
		if r.Ready {
			ready = "yes"
		}
		g.add("%s\t%s\t%s", r.Name, ready, r.To)
	}
	return c.writeWithLine(g)
}

// needed formats how many replicas a model needs, with a question mark if that is a guess.
func needed(h admin.Health) string {
	switch {
	case h.Version == "":
		return "-"
	case h.Needed > 0 && h.ReplicaRows == 0:
		return fmt.Sprintf("%d?", h.Needed)
	}
	return fmt.Sprint(h.Needed)
}

// printClients lists identities and addresses, with a line for each of their quotas and for their
// use of resources without a quota.
func (c *cli) printClients(all []admin.Client) error {
	if len(all) == 0 {
		return nil
	}
	g := newGrid("CLIENT\tREQUESTS\tBYTES\tQUOTA\tUSED\tLIMIT\tREFUSED\tLAST REFUSED", "BYTES\tLAST REFUSED\tREQUESTS")
	for _, one := range all {
		head := fmt.Sprintf("%s\t%d\t%s", one.Name, one.Requests, size(one.Bytes))
		for _, q := range one.Quotas {
			used, limit, last := amount(q.Quota, q.Used), amount(q.Quota, q.Limit), "-"
			if strings.HasSuffix(q.Quota, "_per_second") {
				used = "-"
			}
			if q.Limit == 0 {
				limit = "-"
			}
			if q.Refused > 0 {
				last = seconds(q.Since) + " ago"
			}
			g.add("%s\t%s\t%s\t%s\t%d\t%s", head, q.Quota, used, limit, q.Refused, last)
			head = "\t\t"
		}
		if len(one.Quotas) == 0 {
			g.add("%s\t-\t-\t-\t-\t-", head)
		}
	}
	return c.writeWithLine(g)
}

// amount formats an amount of a quota.
func amount(quota string, n int64) string {
	if strings.Contains(quota, "bytes") {
		return size(n)
	}
	return fmt.Sprint(n)
}

// age formats the time since something that may not have happened.
func age(s float64) string {
	if s == 0 {
		return "-"
	}
	return seconds(s)
}

// millis formats a span of time to the millisecond; "-" for none.
func millis(s float64) string {
	if s == 0 {
		return "-"
	}
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

// printSessions lists the connected containers.
func (c *cli) printSessions(sessions []admin.Session) error {
	if len(sessions) == 0 {
		fmt.Fprintln(c.stdout, "no containers are connected")
		return nil
	}
	g := newGrid("CONTAINER\tINSTANCE\tFROM\tRPC\tSTATE\tCONNECTED\tHEARD FROM\tBATCHES\tROWS\tFAILED\tOUT\tAT ONCE\tSHARED MEMORY",
		"SHARED MEMORY\tAT ONCE\tRPC\tHEARD FROM\tBATCHES\tOUT\tCONNECTED\tINSTANCE")
	for _, k := range sessions {
		model, rpc, out := k.Model+"/"+k.Version, k.RPC, fmt.Sprintf("%d of %d", k.Pending, k.Slots)
		if k.Model == "" { // not registered yet
			model, rpc, out = "-", cmp.Or(k.RPC, "-"), "-"
		}
		g.add("%s\t%s\t%s\t%s\t%s\t%s\t%s ago\t%d\t%d\t%d\t%s\t%d\t%s", model, cmp.Or(k.Instance, "-"),
			k.Remote, rpc,
			k.State, seconds(k.Connected), seconds(k.Silent), k.Batches, k.Rows, k.Failures, out, k.AtOnce, shares(k))
	}
	if err := g.write(c.stdout, c.width()); err != nil {
		return err
	}
	for _, k := range sessions {
		if text := cmp.Or(k.Reason, k.LastFailure); text != "" {
			fmt.Fprintf(c.stdout, "%s at %s: %s\n", cmp.Or(k.Model, "container"), k.Remote, text)
		}
	}
	return nil
}

// shares tells which tensors of a container pass through shared memory, and how much of it the
// container holds.
func shares(k admin.Session) string {
	text := cmp.Or(k.Arena, "-")
	for _, part := range []struct {
		bytes int64
		what  string
	}{{k.Readable, "being read"}, {k.Outputs, "for outputs"}, {k.Replaced, "replaced"}} {
		if part.bytes > 0 {
			text += ", " + size(part.bytes) + " " + part.what
		}
	}
	return text
}

// seconds formats a span of time, more coarsely the longer it is: 0.4s, 12s, 3m12s, 5h10m.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", s)
	case d < time.Hour:
		return d.Round(time.Second).String()
	default:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
}

// size formats a number of bytes with a unit and three digits: 512 B, 1.25 MiB, 4 GiB.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n)/1024, 0
	for v >= 999.5 && i < len(units)-1 {
		v /= 1024
		i++
	}
	return fmt.Sprintf("%.3g %ciB", v, units[i])
}
