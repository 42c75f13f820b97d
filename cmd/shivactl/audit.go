package main

import (
	"cmp"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) auditCommand() *cobra.Command {
	most := 0
	cmd := &cobra.Command{
		Use: "audit", Short: "show who changed what, and which changes were refused",
		Long: `Prints a line for each change, through whatever endpoint, and for each attempt that was refused for
lack of a right: changes by operators, models that clients load and unload, regions of shared memory, containers that
register and leave. Requests and feedback are not listed. The oldest entries come first. WHO is the identity, if there
is one, and the address. The server keeps the last thousand entries since its start; its log has all of them
("audit:"). Times are UTC.

With --json: {"entries": [{"at", "identity", "container", "address", "door", "action", "what", "name", "before", "after", "refused",
"error"}]}; what is empty is left out.
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.audit(most) }),
	}
	cmd.Flags().IntVar(&most, "limit", 1000, "show the last `N` entries")
	return c.watched(cmd)
}

// audit shows the last entries, at most as many as given.
func (c *cli) audit(most int) error {
	return fetch(c, "/v1/audit?limit="+strconv.Itoa(most), c.printAudit)
}

func (c *cli) printAudit(a admin.Audit) error {
	g := newGrid("AT\tWHO\tENDPOINT\tACTION\tWHAT\tNAME\tRESULT", "ENDPOINT")
	for _, e := range a.Entries {
		result := "done"
		switch {
		case e.Refused:
			result = "refused: " + e.Error
		case e.Error != "":
			result = "failed: " + e.Error
		case e.Before != "" || e.After != "":
			result = cmp.Or(e.Before, "-") + " → " + cmp.Or(e.After, "-")
		}
		g.add("%s\t%s\t%s\t%s\t%s\t%s\t%s", e.At.UTC().Format(time.DateTime), cmp.Or(e.Source.String(), "-"),
			e.Door, e.Action, e.What, cmp.Or(e.Name, "-"), result)
	}
	return g.write(c.stdout, c.width())
}
