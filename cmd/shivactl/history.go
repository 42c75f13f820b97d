package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) historyCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "history NAME", Short: "show what served by a name, when, and who changed it",
		Long: `NAME is a model's or an application's. One line per version that served, from its first container to its last (a pause
of less than a minute does not count), for each version that became the default, and for each change that an operator or a
client made. BY is the container that registered last, or who made the change. The last hundred are stored; with --state on
the server they survive a restart. Times are UTC.

With --json: {"name", "events": [{"at", "until" unless it still serves, "what": "served", "default" or "changed", "version",
"by", "registrations", "detail", "server"}]}
`,
		Args: oneArgument("a model or application"), ValidArgsFunction: c.completes(servedNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.history(args[0]) }),
	})
}

func (c *cli) history(name string) error {
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
}
