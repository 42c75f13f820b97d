package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
	"github.com/shivad/shivad/shiva/tensor"
)

func (c *cli) modelsCommand() *cobra.Command {
	models := &cobra.Command{
		Use: "models [NAME]", Short: "list the models, or show and change the settings of one",
		Long: `Prints a line for each version; * marks the default version. READY says whether a live container serves
it. In shapes, -1 stands for any size; a leading -1 is the number of rows. CACHED and HIT RATIO appear if a model has
a prediction cache: shivactl help cache. With NAME, prints that model's versions and its settings in effect.

models set digits objective=20ms max_batch=64 changes settings of all versions of a model while it serves. If one
value is wrong, nothing changes. The settings are strategy, objective, max_batch, batch_bytes, delay, queue_rows,
queue_bytes, execution_timeout, retry, shed, together, slots, keep, stream_interval, streams_per_client, pad,
default_version, retire_after, cache and cache_ttl. The command prints the settings in effect. They override the
configuration file, which stays as it is. If the server has --state, they survive its restart, and apply to all
servers that share the state.

models reset digits objective max_batch returns to the values of the file.

models set-version digits 1 makes version 1 the default at once, even if newer versions connect later. Use it to roll
back a version that fails. Without VERSION the default is the newest version that is ready.

With --json: {"models": [{"name", "version", "default", "ready", "replicas", "platform", "max_batch", "inputs":
[{"name", "datatype", "shape"}], "outputs": [...], "queue_rows", "queue_bytes", "policy": {...}, "cache": {...}
if it has one}]}; what changes something prints {"name", "default_version", "versions": [those]}
`,
		Args: atMostOne("name"), ValidArgsFunction: c.completes(modelNames),
		RunE: c.asks((*cli).models),
	}
	set := &cobra.Command{
		Use: "set NAME KEY=VALUE ...", Short: "change the settings of a model while it serves",
		ValidArgsFunction: c.completesMore(modelNames, settings),
		RunE:              c.asks((*cli).setModel),
	}
	reset := &cobra.Command{
		Use: "reset NAME KEY ...", Short: "reset settings of a model to those of the file",
		ValidArgsFunction: c.completesMore(modelNames, settingNames),
		RunE:              c.asks((*cli).resetModel),
	}
	setVersion := &cobra.Command{
		Use: "set-version NAME [VERSION]", Short: "set the default version of a model",
		ValidArgsFunction: c.completes(modelNames, versionsOf),
		RunE:              c.asks(func(c *cli, args []string) error { return c.setVersion("models", args) }),
	}
	return with(c.watched(models), set, reset, setVersion)
}

func (c *cli) models(args []string) error {
	var list admin.ModelList
	if err := c.get("/v1/models", &list); err != nil {
		return err
	}
	if len(args) == 1 {
		var known []string
		for _, m := range list.Models {
			if m.Name != args[0] {
				known = append(known, m.Name)
			}
		}
		list.Models = slices.DeleteFunc(list.Models, func(m admin.Model) bool { return m.Name != args[0] })
		if len(list.Models) == 0 {
			hint := cmp.Or(didYouMean(args[0], slices.Compact(known)), remoteHints[shiva.NotFound])
			return &failure{shiva.NotFound, fmt.Sprintf("no model %q", args[0]), hint, exitRefused}
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
}

func (c *cli) versionsCommand() *cobra.Command {
	versions := &cobra.Command{
		Use: "versions MODEL", Short: "list a model's versions, or set the default one",
		Long: `Prints a line for each version, the newest first; * marks the default version.

versions set digits 1 makes version 1 the default at once, even if newer versions connect later. Without VERSION the
default is the newest version that is ready. models set-version does the same.

With --json: {"name", "default_version", "versions": [as shivactl models has them]}
`,
		Args: oneArgument("a model"), ValidArgsFunction: c.completes(modelNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.versions(args[0]) }),
	}
	set := &cobra.Command{
		Use: "set MODEL [VERSION]", Short: "set the default version of a model",
		ValidArgsFunction: c.completes(modelNames, versionsOf),
		RunE:              c.asks(func(c *cli, args []string) error { return c.setVersion("versions", args) }),
	}
	return with(c.watched(versions), set)
}

func (c *cli) versions(name string) error {
	return fetch(c, apiPath("/v1/models/%s/versions", name), func(m admin.ModelVersions) error {
		return c.printModels(m.Versions)
	})
}

// setModel changes settings of a model.
func (c *cli) setModel(args []string) error {
	if len(args) == 0 {
		return usage("models", "which model? shivactl models lists them")
	}
	settings := map[string]any{}
	for _, arg := range args[1:] {
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
		return usage("models", "which settings of %s? such as objective=20ms", args[0])
	}
	return c.changeModel(args[0], settings)
}

// resetModel resets settings of a model to the configuration file's.
func (c *cli) resetModel(args []string) error {
	if len(args) == 0 {
		return usage("models", "which model? shivactl models lists them")
	}
	settings := map[string]any{}
	for _, key := range args[1:] {
		settings[key] = nil
	}
	if len(settings) == 0 {
		return usage("models", "which settings of %s? such as objective", args[0])
	}
	return c.changeModel(args[0], settings)
}

func (c *cli) changeModel(name string, settings map[string]any) error {
	return submit(c, http.MethodPatch, apiPath("/v1/models/%s", name), settings, func(m admin.ModelVersions) error {
		if len(m.Versions) == 0 { // the model was removed meanwhile
			return nil
		}
		return c.printSettings(m.Versions[0].Policy)
	})
}

// setVersion makes a version the default of its model; without a version, the newest.
func (c *cli) setVersion(command string, args []string) error {
	if len(args) == 0 {
		return usage(command, "which model? shivactl models lists them")
	}
	name, args := args[0], args[1:]
	if len(args) > 1 {
		return usage(command, "expected one version, got %d", len(args))
	}
	version := strings.Join(args, "")
	path, body := apiPath("/v1/models/%s/default_version", name), map[string]string{"version": version}
	return submit(c, http.MethodPut, path, body, func(m admin.ModelVersions) error {
		text := "%s means version %s\n"
		if version == "" {
			text = "%s means the newest version that is ready, now %s\n"
		}
		fmt.Fprintf(c.stdout, text, name, m.DefaultVersion)
		return nil
	})
}

// printSettings prints the effective settings of a model.
func (c *cli) printSettings(policy any) error {
	settings, _ := policy.(map[string]any)
	g := newList()
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		g.add("%s\t%s", key, settingText(settings[key]))
	}
	return g.write(c.stdout, c.width())
}

// settingText formats the value of a setting as the file of the server would have it; "-" is none.
func settingText(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case []any, map[string]any:
		if text, err := json.Marshal(v); err == nil && len(text) > len("{}") {
			return string(text)
		}
		return "-"
	default:
		return fmt.Sprint(v)
	}
}

func (c *cli) printModels(models []admin.Model) error {
	if len(models) == 0 {
		fmt.Fprintln(c.stdout, "no models: no container has connected yet; shivactl status shows where they can")
		return nil
	}
	head := "MODEL\tVERSION\tREADY\tREPLICAS\tPLATFORM\tMAX BATCH\tINPUTS\tOUTPUTS\tWAITING"
	if slices.ContainsFunc(models, func(m admin.Model) bool { return m.Cache != nil }) {
		head += "\tCACHED\tHIT RATIO"
	}
	g := newGrid(head, "PLATFORM\tMAX BATCH\tCACHED\tHIT RATIO\tWAITING")
	for _, m := range models {
		version, ready, cached, ratio := m.Version, "no", "-", "-"
		if m.Default {
			version += "*"
		}
		if m.Ready {
			ready = "yes"
		}
		if m.Cache != nil {
			cached, ratio = size(m.Cache.Bytes), hitRatio(*m.Cache)
		}
		g.add("%s\t%s\t%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s", m.Name, version, ready, m.Replicas, cmp.Or(m.Platform, "-"),
			m.MaxBatch, declarations(m.Inputs), declarations(m.Outputs), plural.Of(m.QueueRows, "row"), cached, ratio)
	}
	return g.write(c.stdout, c.width())
}

func declarations(list []admin.Tensor) string {
	texts := make([]string, len(list))
	for i, t := range list {
		texts[i] = fmt.Sprintf("%s %s%s", t.Name, t.Datatype, strings.ReplaceAll(tensor.Shape(t.Shape).String(), " ", ""))
	}
	return cmp.Or(strings.Join(texts, " "), "-")
}
