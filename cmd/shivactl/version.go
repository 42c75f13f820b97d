package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/shivad/shivad/server/admin"
)

var versionCommand = command{
	name: "version", short: "print the versions of shivactl and of the server, if one answers",
	help: `With --json: {"shivactl": "...", "go": "...", "server": "..." or null}
`,
	takes: []kind{nothing},
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 0 {
			return usage("version", "unexpected argument %q", args[0])
		}
		own := "(unknown)"
		if info, ok := debug.ReadBuildInfo(); ok {
			own = info.Main.Version
		}
		var s admin.Status
		err := c.get("/v1/status", &s)
		if c.json {
			out := map[string]any{"shivactl": own, "go": runtime.Version(), "server": nil}
			if err == nil {
				out["server"] = s.Version
			}
			return c.printJSON(out)
		}
		fmt.Fprintf(c.stdout, "shivactl %s (%s)\n", own, runtime.Version())
		if err != nil {
			fmt.Fprintf(c.stdout, "shivad: none answers at %s\n", c.admin)
			return nil
		}
		fmt.Fprintf(c.stdout, "shivad %s at %s\n", s.Version, c.admin)
		return nil
	},
}
