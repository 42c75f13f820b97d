package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

var configCommand = command{
	name: "config", args: "[KEY]", short: "show every setting in effect",
	help: `One line per setting, with the key that it has in the server's file: of all, or of those that begin with KEY, as in

  shivactl config tcp
  shivactl config model.digits

Settings that were changed while the server runs are shown as they are now. Passwords are not shown.

With --json: all settings, by table; KEY is not taken
`,
	takes: []kind{nothing},
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 1 || c.json && len(args) > 0 {
			return usage("config", "unexpected argument %q", args[len(args)-1])
		}
		var all map[string]any
		if err := c.get("/v1/config", &all); err != nil {
			return err
		}
		if c.json {
			return c.printJSON(all)
		}
		lines := map[string]string{}
		flatten(lines, "", all)
		w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
		shown := 0
		for _, key := range slices.Sorted(maps.Keys(lines)) {
			if len(args) > 0 && key != args[0] && !strings.HasPrefix(key, args[0]+".") && !strings.HasPrefix(key, args[0]+"[") {
				continue
			}
			fmt.Fprintf(w, "%s\t%s\n", key, lines[key])
			shown++
		}
		if shown == 0 && len(args) > 0 {
			return usage("config", "there is no setting %q; shivactl config shows all", args[0])
		}
		return w.Flush()
	},
}

// flatten gives every value that is no table a line of its own.
func flatten(to map[string]string, key string, v any) {
	if table, ok := v.(map[string]any); ok {
		for name, value := range table {
			flatten(to, strings.TrimPrefix(key+"."+name, "."), value)
		}
		return
	}
	if list, ok := v.([]any); ok && len(list) > 0 {
		if _, tables := list[0].(map[string]any); tables {
			for i, value := range list {
				flatten(to, fmt.Sprintf("%s[%d]", key, i), value)
			}
			return
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		text = []byte(err.Error()) // of what came as JSON: cannot fail
	}
	to[key] = string(text)
}
