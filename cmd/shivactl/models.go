package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

var modelsCommand = command{
	name: "models", args: "[NAME]", short: "list the models, or the versions of one",
	help: `One line per version; * marks the one that the bare name means. READY says whether a live container
serves it. In shapes -1 stands for any size; the first -1 counts rows.

With --json: {"models": [{"name", "version", "default", "ready", "replicas", "platform", "max_batch", "inputs":
[{"name", "datatype", "shape"}], "outputs": [...], "queue_rows", "queue_bytes", "policy": {...}}]}
`,
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 1 {
			return usage("models", "expected one name, got %d", len(args))
		}
		var list admin.ModelList
		if err := c.get("/v1/models", &list); err != nil {
			return err
		}
		if len(args) == 1 {
			all := list.Models
			list.Models = []admin.Model{}
			for _, m := range all {
				if m.Name == args[0] {
					list.Models = append(list.Models, m)
				}
			}
			if len(list.Models) == 0 {
				return &failure{shiva.NotFound, fmt.Sprintf("no model %q", args[0]), remoteHints[shiva.NotFound], exitRefused}
			}
		}
		if c.json {
			return c.printJSON(list)
		}
		return c.printModels(list.Models)
	},
}

func (c *cli) printModels(models []admin.Model) error {
	if len(models) == 0 {
		fmt.Fprintln(c.stdout, "no models: no container has connected yet; shivactl status shows where they can")
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tVERSION\tREADY\tREPLICAS\tPLATFORM\tMAX BATCH\tINPUTS\tOUTPUTS\tWAITING")
	for _, m := range models {
		version, ready := m.Version, "no"
		if m.Default {
			version += "*"
		}
		if m.Ready {
			ready = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\n", m.Name, version, ready, m.Replicas, or(m.Platform, "-"), m.MaxBatch,
			declarations(m.Inputs), declarations(m.Outputs), plural(m.QueueRows, "row"))
	}
	return w.Flush()
}

func declarations(list []admin.Tensor) string {
	texts := make([]string, len(list))
	for i, t := range list {
		texts[i] = fmt.Sprintf("%s %s%s", t.Name, t.Datatype, strings.ReplaceAll(tensor.Shape(t.Shape).String(), " ", ""))
	}
	return or(strings.Join(texts, " "), "-")
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
