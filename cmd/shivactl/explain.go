package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva"
)

func (c *cli) explainCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "explain MODEL", Short: "explain what limits a model or application, and what to change",
		Long: `MODEL is a name, for all its versions, or NAME/VERSION, or the name of an application. A model's figures are of the last minute, or, after a pause,
of the last minute in which anything happened; a sentence says how long ago that was.

With --json: {"versions": [{"name", "version", "sentences": [...]}]}
`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("explain", "expected one model, got %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: c.completes(servedNames),
		RunE:              c.asks((*cli).explain),
	})
}

func (c *cli) explain(args []string) error {
	name, version, versioned := strings.Cut(args[0], "/")
	var e admin.Explanations
	if err := c.get(apiPath("/v1/models/%s/explain", name), &e); err != nil {
		return err
	}
	if versioned {
		e.Versions = slices.DeleteFunc(e.Versions, func(v admin.Explanation) bool { return v.Version != version })
		if len(e.Versions) == 0 {
			return &failure{shiva.NotFound, fmt.Sprintf("no version %q of a model %q", version, name),
				remoteHints[shiva.NotFound], exitRefused}
		}
	}
	if c.json {
		return c.printJSON(e)
	}
	for i, v := range e.Versions {
		if i > 0 {
			fmt.Fprintln(c.stdout)
		}
		if v.Version == "" {
			fmt.Fprintln(c.stdout, v.Name)
		} else {
			fmt.Fprintf(c.stdout, "%s/%s\n", v.Name, v.Version)
		}
		for _, s := range v.Sentences {
			fmt.Fprintf(c.stdout, "  - %s\n", s)
		}
	}
	return nil
}
