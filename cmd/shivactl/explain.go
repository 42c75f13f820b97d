package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) explainCommand() *cobra.Command {
	return c.watched(&cobra.Command{
		Use: "explain MODEL", Short: "explain what limits a model or application, and what to change",
		Long: `MODEL is a model (all its versions), NAME/VERSION, an application or a pipeline. The figures are those of the last
minute. If nothing happened in it, they are those of the last minute with requests, and a sentence says how long ago
that was.

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
		one := slices.IndexFunc(e.Versions, func(v admin.Explanation) bool { return v.Version == version })
		if one < 0 {
			return c.unregistered(name, version, e.Versions)
		}
		e.Versions = e.Versions[one : one+1]
	}
	if c.json {
		return c.printJSON(e)
	}
	c.printExplanations(e.Versions)
	return nil
}

// unregistered tells of a version that no container has registered what there is instead: other
// versions, what is known of the name as a whole, and the containers that may still register it.
func (c *cli) unregistered(name, version string, there []admin.Explanation) error {
	id := name + "/" + version
	var versions []string
	whole := slices.DeleteFunc(slices.Clone(there), func(v admin.Explanation) bool { return v.Version != "" })
	for _, v := range there {
		if v.Version != "" {
			versions = append(versions, v.Version)
		}
	}
	if !c.json {
		c.printExplanations(whole)
	}
	text := fmt.Sprintf("no container has registered %s", id)
	if len(versions) > 0 {
		text += fmt.Sprintf("; %s has %s: %s", name, plural.Of(len(versions), "version"), strings.Join(versions, ", "))
	}
	var list admin.Containers
	_ = c.get("/v1/containers", &list) // the rest is worth telling without them
	for _, k := range list.Containers {
		if k.Model == name || k.Model == id {
			text += fmt.Sprintf("; container %q of the server's file is %s", k.Name, k.State)
			if k.Reason != "" {
				text += " (" + oneLine(k.Reason) + ")"
			}
		}
	}
	return &failure{shiva.NotFound, text, "a version is there once its container, which may still be connecting, has " +
		"registered it: shivactl status lists those that are connected. Containers stand in the server's file: " +
		"shivactl manual containers", exitRefused}
}

func (c *cli) printExplanations(all []admin.Explanation) {
	for i, v := range all {
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
}
