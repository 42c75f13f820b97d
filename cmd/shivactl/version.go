package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/build"
)

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the versions of shivactl and of the server",
		Long: `shivactl --version prints only its own version, and needs no server.

With --json: {"shivactl": "...", "commit": "...", "go": "...", "server": "..." or null}
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.version() }),
	}
}

func (c *cli) version() error {
	var s admin.Status
	err := c.get("/v1/status", &s)
	if c.json {
		out := map[string]any{"shivactl": build.Version, "commit": build.Commit(), "go": runtime.Version(), "server": nil}
		if err == nil {
			out["server"] = s.Version
		}
		return c.printJSON(out)
	}
	fmt.Fprintln(c.stdout, build.Line("shivactl"))
	if err != nil {
		fmt.Fprintf(c.stdout, "shivad: none answers at %s\n", c.admin)
		return nil
	}
	fmt.Fprintf(c.stdout, "shivad %s at %s\n", s.Version, c.admin)
	return nil
}
