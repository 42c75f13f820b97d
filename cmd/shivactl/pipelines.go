package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) pipelinesCommand() *cobra.Command {
	pipelines := &cobra.Command{
		Use: "pipelines [NAME]", Short: "list pipelines; create, show, check, draw or delete one",
		Long: pipelinesHelp, Example: pipelinesExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneArgument(aPipeline)(cmd, args)
		},
		ValidArgsFunction: c.completes(pipelineNames),
		RunE: c.asks(func(c *cli, args []string) error {
			if len(args) == 0 {
				return c.listPipelines()
			}
			return c.showPipeline(args[0])
		}),
	}
	list := &cobra.Command{
		Use: "list", Short: "list the pipelines",
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.listPipelines() }),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "show a pipeline and the state of its stages",
		Args: oneArgument(aPipeline), ValidArgsFunction: c.completes(pipelineNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.showPipeline(args[0]) }),
	}
	replace := false
	create := &cobra.Command{
		Use: "create NAME FILE", Short: "create a pipeline from a file",
		Args: nameAndFile, ValidArgsFunction: c.completes(pipelineNames, anyFile),
		RunE: c.asks(func(c *cli, args []string) error { return c.createPipeline(args[0], args[1], replace) }),
	}
	create.Flags().BoolVar(&replace, "replace", false, "replace the pipeline of that name, if there is one")
	check := &cobra.Command{
		Use: "check NAME [FILE]", Short: "compare a pipeline with the models that serve",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				return nil
			}
			return oneArgument(aPipeline+", and perhaps a file")(cmd, args)
		},
		ValidArgsFunction: c.completes(pipelineNames, anyFile),
		RunE:              c.asks((*cli).checkPipeline),
	}
	draw := &cobra.Command{
		Use: "draw NAME", Short: "print a pipeline as SVG, with the state of its stages",
		Args: oneArgument(aPipeline), ValidArgsFunction: c.completes(pipelineNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.drawPipeline(args[0]) }),
	}
	remove := &cobra.Command{
		Use: "delete NAME", Short: "delete a pipeline",
		Args: oneArgument(aPipeline), ValidArgsFunction: c.completes(pipelineNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.deletePipeline(args[0]) }),
	}
	return with(c.watched(pipelines), c.watched(list), c.watched(show), create, check, draw, c.deleting(remove, "pipeline %s"))
}

// aPipeline is what most of these commands take.
const aPipeline = "the name of a pipeline"

const pipelinesHelp = `A pipeline connects several models under one name: one finds plates in a picture, the next
reads each plate. Clients use it like a model.

FILE contains a table [pipeline.NAME], as in the server's configuration, with or without that heading, or the same as
JSON; - is standard input. Only the configuration file can change the pipelines that it contains. create refuses a
pipeline that is faulty, or does not fit the models that serve now. A model that the server does not know yet is
allowed, with a warning. check lists all faults of a pipeline, or of the one in FILE, and exits with 1 if there are
any.

With --json: {"pipelines": [{"name", "inputs", "outputs", "slo", "keep", "stages": [{"name", "model",
"inputs", "each", "boxes", "keep", "margin", "required", "timeout"}], "origin", "faults", "load"}]},
of one pipeline {"name", ...}, of check {"pipeline", "faults"}, of draw {"svg"}
`

const pipelinesExample = `  shivactl pipelines create plates plates.toml
  shivactl pipelines check plates new-plates.toml
  shivactl pipelines draw plates > plates.svg
`

func nameAndFile(_ *cobra.Command, args []string) error {
	if len(args) != 2 || args[0] == "" {
		return usage("pipelines", "expected the name of a pipeline and a file, got %s", plural.Of(len(args), "argument"))
	}
	return nil
}

// definition reads a file as the body of a request: the pipeline as JSON.
func (c *cli) definition(name, file string) ([]byte, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(c.stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, unfit("", "%v", err)
	}
	var tree map[string]any
	if trimmed := strings.TrimSpace(string(text)); strings.HasPrefix(trimmed, "{") {
		if err := json.Unmarshal(text, &tree); err != nil {
			return nil, unfit("", "%s: %v", file, err)
		}
	} else if err := toml.Unmarshal(text, &tree); err != nil {
		return nil, unfit("shivactl help pipelines shows what it has", "%s: %s", file, faultOf(err))
	}
	if all, headed := tree["pipeline"].(map[string]any); headed {
		own, found := all[name].(map[string]any)
		if !found {
			has := slices.Sorted(maps.Keys(all))
			return nil, unfit("it has "+strings.Join(has, ", "), "%s has no [pipeline.%s]", file, name)
		}
		tree = own
	}
	if stages, ok := tree["stage"]; ok { // as the configuration has them
		delete(tree, "stage")
		tree["stages"] = stages
	}
	tree["name"] = cmp.Or[any](tree["name"], name)
	return json.Marshal(tree)
}

func (c *cli) createPipeline(name, file string, replace bool) error {
	text, err := c.definition(name, file)
	if err != nil {
		return err
	}
	method, path := http.MethodPost, "/v1/pipelines"
	if replace {
		method, path = http.MethodPut, apiPath("/v1/pipelines/%s", name)
	}
	var p admin.Pipeline
	if err := c.call(method, path, text, &p); err != nil {
		return err
	}
	var models []string
	for _, s := range p.Stages {
		models = append(models, s.Model)
	}
	c.doubtLinks(models, "requests to the pipeline are refused", append(appNames(c, nil, ""), pipelineNames(c, nil, "")...)...)
	return c.showPipeline(p.Name)
}

func (c *cli) listPipelines() error {
	return fetch(c, "/v1/pipelines", func(list admin.PipelineList) error {
		if len(list.Pipelines) == 0 {
			fmt.Fprintln(c.stdout, "no pipelines; shivactl help pipelines tells how to make one")
			return nil
		}
		return c.printPipelines(list.Pipelines)
	})
}

func (c *cli) printPipelines(all []admin.PipelineStatus) error {
	g := newGrid("PIPELINE\tSTAGES\tINPUTS\tOUTPUTS\tFROM\tFAULTS", "FROM\tOUTPUTS\tINPUTS")
	for _, p := range all {
		var stages []string
		for _, s := range p.Stages {
			stages = append(stages, s.Name+" ("+s.Model+")")
		}
		g.add("%s\t%s\t%s\t%s\t%s\t%d", p.Name, strings.Join(stages, ", "), strings.Join(p.Inputs, " "),
			outputsText(p.Outputs), p.Origin, len(p.Faults))
	}
	return g.write(c.stdout, c.width())
}

// outputsText lists the outputs of a pipeline with what makes each.
func outputsText(outputs map[string]string) string { return cmp.Or(equations(outputs), "all") }

// equations lists names with what each stands for, if that differs.
func equations(outputs map[string]string) string {
	var list []string
	for name, from := range outputs {
		if name != from {
			from = name + " = " + from
		}
		list = append(list, from)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func (c *cli) showPipeline(name string) error {
	return fetch(c, apiPath("/v1/pipelines/%s", name), c.printPipeline)
}

func (c *cli) printPipeline(p admin.PipelineStatus) error {
	g := newList()
	g.add("pipeline\t%s", p.Name)
	g.add("inputs\t%s", strings.Join(p.Inputs, ", "))
	g.add("outputs\t%s", outputsText(p.Outputs))
	g.add("slo\t%s", cmp.Or(p.SLO, "that of the first stage's model"))
	g.add("keep\t%s", cmp.Or(p.Keep.String(), "that of the first stage's model"))
	g.add("from\t%s",
		map[string]string{admin.OriginFile: "the server's file", admin.OriginStore: "shivactl or a program"}[p.Origin])
	if err := c.writeWithLine(g); err != nil {
		return err
	}
	g = newGrid("STAGE\tMODEL\tREADS\tEACH\tKEEP\tLATELY", "")
	for i, s := range p.Stages {
		lately := "-"
		if i < len(p.Load) {
			lately = p.Load[i].Summary
		}
		g.add("%s\t%s\t%s\t%s\t%s\t%s", s.Name, s.Model, cmp.Or(equations(s.Inputs), "-"),
			cmp.Or(s.Each, "-"), cmp.Or(strings.Join(s.Keep.Conditions(), ", "), "-"), lately)
	}
	if err := g.write(c.stdout, c.width()); err != nil {
		return err
	}
	c.printFaults(p.Faults)
	return nil
}

func (c *cli) printFaults(faults []string) {
	if len(faults) > 0 {
		fmt.Fprintf(c.stdout, "\nRequests are refused:\n")
	}
	for _, f := range faults {
		fmt.Fprintf(c.stdout, "  - %s\n", f)
	}
}

func (c *cli) checkPipeline(args []string) error {
	var checked admin.PipelineCheck
	if len(args) == 1 {
		var p admin.PipelineStatus
		if err := c.get(apiPath("/v1/pipelines/%s", args[0]), &p); err != nil {
			return err
		}
		checked = admin.PipelineCheck{Pipeline: p.Pipeline, Faults: p.Faults}
	} else {
		text, err := c.definition(args[0], args[1])
		if err != nil {
			return err
		}
		if err := c.call(http.MethodPost, "/v1/pipelines?dry_run=true", text, &checked); err != nil {
			return err
		}
	}
	var err error
	if len(checked.Faults) > 0 {
		err = &failure{code: exitRefused}
	}
	if c.json {
		return cmp.Or(c.printJSON(checked), err)
	}
	if err == nil {
		fmt.Fprintf(c.stdout, "pipeline %s fits the models that serve\n", checked.Pipeline.Name)
	}
	for _, f := range checked.Faults {
		fmt.Fprintln(c.stdout, f)
	}
	return err
}

func (c *cli) drawPipeline(name string) error {
	return fetch(c, apiPath("/v1/pipelines/%s/drawing", name), func(drawn admin.PipelineDrawing) error {
		_, err := io.WriteString(c.stdout, drawn.SVG)
		return err
	})
}

func (c *cli) deletePipeline(name string) error {
	return order(c, http.MethodDelete, apiPath("/v1/pipelines/%s", name), nil, func(p admin.Pipeline) error {
		fmt.Fprintf(c.stdout, "pipeline %s is deleted\n", p.Name)
		return nil
	})
}

func pipelineNames(c *cli, _ []string, _ string) (found []string) {
	var list admin.PipelineList
	_ = c.get("/v1/pipelines", &list)
	for _, p := range list.Pipelines {
		found = append(found, p.Name)
	}
	return found
}

// printStages lists the stages of all pipelines, and how they have done in the last minute.
func (c *cli) printStages(all []admin.PipelineLoad) error {
	if len(all) == 0 {
		return nil
	}
	return c.writeWithLine(stageGrid(all))
}

// stageGrid has a row for each stage of pipelines.
func stageGrid(all []admin.PipelineLoad) *grid {
	g := newGrid("PIPELINE\tSTAGE\tREQUESTS\tROWS\tBATCH\tWAITED\tTOOK\tOF DEADLINE\tLEFT OUT\tNOT BEGUN\tLOST",
		"LEFT OUT\tNOT BEGUN\tBATCH\tLOST\tREQUESTS\tOF DEADLINE")
	for _, p := range all {
		for _, l := range p.Stages {
			batch, waited, took, share := "-", "-", "-", "-"
			if l.Batch > 0 {
				batch = fmt.Sprintf("%.3g", l.Batch)
			}
			if l.Took > 0 {
				waited, took, share = roughly(l.Waited), roughly(l.Took), fmt.Sprintf("%.2g %%", 100*l.Share)
			}
			g.add("%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d", p.Name, l.Stage, l.Requests, l.Rows, batch,
				waited, took, share, l.LeftOut, l.NotBegun, l.LostRows())
		}
	}
	return g
}

// kindOf says what a name without versions is. Servers before pipelines do not say it.
func kindOf(h admin.Health) string { return cmp.Or(h.Kind, "application") }
