package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) reloadCommand() *cobra.Command {
	return c.patient(&cobra.Command{
		Use: "reload", Short: "reload the server's configuration file",
		Long: `Makes the server read its configuration file again, as SIGHUP does, and prints what has changed.
Settings that can change at run time change at once; the command lists those that wait for a restart. If the file is
wrong, nothing changes, and the command prints all faults. The processes of a changed [[container]] are replaced one
by one, each after the new one serves, and the command waits for that. If a new process does not start, the old ones
stay, and the command fails.

With --json: {"changed": [{"key", "before", "after"}], "waiting": [...]}
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.reload() }),
	}, loading)
}

func (c *cli) reload() error {
	c.doing = "reload"
	return order(c, http.MethodPost, "/v1/config/reload", []byte{}, func(done admin.Reloaded) error {
		if len(done.Changed)+len(done.Waiting) == 0 {
			fmt.Fprintln(c.stdout, "nothing has changed")
		}
		for _, one := range done.Changed {
			fmt.Fprintf(c.stdout, "%s: %s -> %s\n", one.Key, valueText(one.Before), valueText(one.After))
		}
		for _, one := range done.Waiting {
			fmt.Fprintf(c.stdout, "%s: %s -> %s after a restart\n", one.Key, valueText(one.Before),
				valueText(one.After))
		}
		return nil
	})
}

// valueText formats a setting's value on one line.
func valueText(v any) string {
	if v == nil {
		return "none"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error() // of a decoded JSON value: cannot fail
	}
	return string(text)
}

func (c *cli) configCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config [KEY]", Short: "show every setting in effect",
		Long: `Prints a line for each setting, with its key in the server's file. With KEY, prints only the settings
whose keys begin with it.

Settings that were changed at run time have their present values. Passwords are not shown.

With --json: all settings, by table; KEY is not taken
`,
		Example: `  shivactl config tcp
  shivactl config model.digits
`,
		ValidArgsFunction: c.completes(configKeys),
		RunE:              c.asks((*cli).showConfig),
	}
}

func (c *cli) showConfig(args []string) error {
	if len(args) > 1 || c.json && len(args) > 0 {
		return usage("config", "unexpected argument %q", args[len(args)-1])
	}
	return fetch(c, "/v1/config", func(all map[string]any) error {
		lines := map[string]string{}
		flatten(lines, "", all)
		g := newList()
		shown := 0
		for _, key := range slices.Sorted(maps.Keys(lines)) {
			if len(args) > 0 && key != args[0] && !strings.HasPrefix(key, args[0]+".") &&
				!strings.HasPrefix(key, args[0]+"[") {
				continue
			}
			g.add("%s\t%s", key, lines[key])
			shown++
		}
		if shown == 0 && len(args) > 0 {
			return usage("config", "there is no setting %q; shivactl config shows all", args[0])
		}
		return g.write(c.stdout, c.width())
	})
}

// flatten maps every value that is not a table to its dotted key.
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
		text = []byte(err.Error()) // of a decoded JSON value: cannot fail
	}
	to[key] = string(text)
}
