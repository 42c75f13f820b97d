package main

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/tensor"
)

var modelsCommand = command{
	name: "models", args: "[set] [NAME ...]", short: "list the models, or change the settings of one",
	help: `One line per version; * marks the one that the bare name means. READY says whether a live container
serves it. In shapes -1 stands for any size; the first -1 counts rows. CACHED and HIT RATIO, if a model has
a prediction cache: see shivactl help cache. With a name: the versions of that
model, and its settings in effect.

models set digits objective=20ms max_batch=64 changes how all versions of a model are batched, while it serves:
at once, all settings or none, and until the server ends (its file is not written). The settings are strategy,
objective, max_batch, batch_bytes, delay, queue_rows, queue_bytes, execution_timeout, retry, shed, slots, pad,
default_version, retire_after, cache and cache_ttl. It prints the settings in effect.

models set-version digits 1 makes version 1 what the bare name means, at once, whatever connects later, until the
server ends: the way back from a version that fails. Without a version the newest that is ready is meant again.

With --json: {"models": [{"name", "version", "default", "ready", "replicas", "platform", "max_batch", "inputs":
[{"name", "datatype", "shape"}], "outputs": [...], "queue_rows", "queue_bytes", "policy": {...}, "cache": {...}
if it has one}]}
`,
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 1 && args[0] == "set" {
			return c.setModel(args[1], args[2:])
		}
		if len(args) > 1 && args[0] == "set-version" {
			return c.setVersion(args[1], args[2:])
		}
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
		if err := c.printModels(list.Models); err != nil || len(args) == 0 {
			return err
		}
		fmt.Fprintln(c.stdout)
		return c.printSettings(list.Models[0].Policy)
	},
}

// setModel changes settings of a model.
func (c *cli) setModel(name string, args []string) error {
	settings := map[string]string{}
	for _, arg := range args {
		key, value, ok := strings.Cut(arg, "=")
		if !ok || key == "" {
			return usage("models", "expected KEY=VALUE, got %q", arg)
		}
		if _, twice := settings[key]; twice {
			return usage("models", "%s is set twice", key)
		}
		settings[key] = value
	}
	if len(settings) == 0 {
		return usage("models", "which settings of %s? such as objective=20ms", name)
	}
	var m admin.ModelVersions
	if err := c.patch("/v1/models/"+url.PathEscape(name), settings, &m); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(m)
	}
	if len(m.Versions) == 0 { // it went meanwhile
		return nil
	}
	return c.printSettings(m.Versions[0].Policy)
}

// setVersion makes a version the default of its model, or with none the newest.
func (c *cli) setVersion(name string, args []string) error {
	if len(args) > 1 {
		return usage("models", "expected one version, got %d", len(args))
	}
	version := strings.Join(args, "")
	var m admin.ModelVersions
	if err := c.patch("/v1/models/"+url.PathEscape(name), map[string]string{"default_version": version}, &m); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(m)
	}
	text := "%s means version %s\n"
	if version == "" {
		text = "%s means the newest version that is ready, now %s\n"
	}
	fmt.Fprintf(c.stdout, text, name, m.DefaultVersion)
	return nil
}

// printSettings prints the settings in effect of a model.
func (c *cli) printSettings(policy any) error {
	settings, _ := policy.(map[string]any)
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(w, "%s\t%v\n", key, settings[key])
	}
	return w.Flush()
}

func (c *cli) printModels(models []admin.Model) error {
	if len(models) == 0 {
		fmt.Fprintln(c.stdout, "no models: no container has connected yet; shivactl status shows where they can")
		return nil
	}
	cached := slices.ContainsFunc(models, func(m admin.Model) bool { return m.Cache != nil })
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "MODEL\tVERSION\tREADY\tREPLICAS\tPLATFORM\tMAX BATCH\tINPUTS\tOUTPUTS\tWAITING")
	if cached {
		fmt.Fprint(w, "\tCACHED\tHIT RATIO")
	}
	fmt.Fprintln(w)
	for _, m := range models {
		version, ready := m.Version, "no"
		if m.Default {
			version += "*"
		}
		if m.Ready {
			ready = "yes"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s", m.Name, version, ready, m.Replicas, or(m.Platform, "-"), m.MaxBatch,
			declarations(m.Inputs), declarations(m.Outputs), plural(m.QueueRows, "row"))
		switch {
		case m.Cache != nil:
			fmt.Fprintf(w, "\t%s\t%s", size(m.Cache.Bytes), hitRatio(*m.Cache))
		case cached:
			fmt.Fprint(w, "\t-\t-")
		}
		fmt.Fprintln(w)
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
