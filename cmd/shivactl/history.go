package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/server/admin"
)

var historyCommand = command{
	name: "history", args: "NAME", short: "show what served by a name and when, who registered it and who changed it",
	help: `NAME is a model's or an application's. One line per version that served, from its first container to its last (a pause
of less than a minute does not count), for each version that became the default, and for each change that an operator or a
client made. BY is the container that registered last, or who made the change. The last hundred are stored; with --state on
the server they survive a restart. Times are UTC.

With --json: {"name", "events": [{"at", "until" unless it still serves, "what": "served", "default" or "changed", "version",
"by", "registrations", "detail", "server"}]}
`,
	takes: []kind{aName, nothing}, watches: true,
	run: func(c *cli, _ any, args []string) error {
		name, err := oneArgument("history", "a model or application", args)
		if err != nil {
			return err
		}
		var h admin.History
		if err := c.get(apiPath("/v1/history/%s", name), &h); err != nil {
			return err
		}
		if c.json {
			return c.printJSON(h)
		}
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "FROM\tUNTIL\tWHAT\tVERSION\tBY\tSERVER\tDETAIL")
		for _, e := range h.Events {
			until := "-"
			switch {
			case e.Until != nil:
				until = e.Until.UTC().Format(time.DateTime)
			case e.What == "served":
				until = "now"
			}
			detail := e.Detail
			if e.Registrations > 1 {
				detail = strings.TrimSpace(fmt.Sprintf("%d registrations %s", e.Registrations, detail))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.At.UTC().Format(time.DateTime), until, e.What,
				cmp.Or(e.Version, "-"), cmp.Or(e.By, "-"), e.Server, cmp.Or(detail, "-"))
		}
		return w.Flush()
	},
}
