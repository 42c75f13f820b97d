package main

import (
	"cmp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) historyCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "history NAME", Short: "show which versions of a model served when, and who changed it",
		Long: `NAME is a model or an application. Prints a line for each version that served (pauses of less than a
minute do not count), for each version that became the default, and for each change by an operator or a client. BY is
the container that registered last, or who made the change. The server keeps the last hundred events; with --state
they survive its restart. Times are UTC.

With --json: {"name", "events": [{"at", "until" unless it still serves, "what": "served", "default" or "changed", "version",
"by", "registrations", "detail", "server"}]}
`,
		Args: oneArgument("a model or application"), ValidArgsFunction: c.completes(servedNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.history(args[0]) }),
	})
}

func (c *cli) history(name string) error {
	return fetch(c, apiPath("/v1/history/%s", name), c.printHistory)
}

func (c *cli) printHistory(h admin.History) error {
	g := newGrid("FROM\tUNTIL\tWHAT\tVERSION\tBY\tSERVER\tDETAIL", "SERVER")
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
			detail = strings.TrimSpace(plural.Of(e.Registrations, "registration") + " " + detail)
		}
		g.add("%s\t%s\t%s\t%s\t%s\t%s\t%s", e.At.UTC().Format(time.DateTime), until, e.What,
			cmp.Or(e.Version, "-"), cmp.Or(e.By, "-"), e.Server, cmp.Or(detail, "-"))
	}
	return g.write(c.stdout, c.width())
}
