package main

import (
	"fmt"
	"runtime"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/build"
)

var versionCommand = command{
	name: "version", short: "print the versions of shivactl and of the server, if one answers",
	help: `shivactl --version prints its own alone, and asks no server.

With --json: {"shivactl": "...", "commit": "...", "go": "...", "server": "..." or null}
`,
	takes: []kind{nothing},
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 0 {
			return usage("version", "unexpected argument %q", args[0])
		}
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
	},
}
