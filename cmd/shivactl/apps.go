package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) appsCommand() *cobra.Command {
	apps := &cobra.Command{
		Use: "apps [NAME]", Short: "list applications; create, show, change or delete one",
		Long: appsHelp, Example: appsExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return oneArgument(anApplication)(cmd, args)
		},
		ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error {
			if len(args) == 0 {
				return c.listApps()
			}
			return c.showApp(args[0])
		}),
	}
	list := &cobra.Command{
		Use: "list", Short: "list the applications",
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.listApps() }),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "show an application",
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.showApp(args[0]) }),
	}
	create := &cobra.Command{
		Use: "create NAME --model M ...", Short: "create an application",
		Args: oneArgument(anApplication), ValidArgsFunction: cobra.NoFileCompletions,
	}
	made := c.appFlags(create)
	create.RunE = c.asks(func(c *cli, args []string) error { return c.createApp(made, args[0]) })
	change := &cobra.Command{
		Use: "change NAME", Short: "change an application",
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
	}
	changed := c.appFlags(change)
	change.RunE = c.asks(func(c *cli, args []string) error { return c.changeApp(changed, args[0]) })
	remove := &cobra.Command{
		Use: "delete NAME", Short: "delete an application and what its policy has learned",
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.deleteApp(args[0]) }),
	}
	return with(c.watched(apps), c.watched(list), c.watched(show), create, change,
		c.deleting(remove, "application %s and what its policy has learned"))
}

// anApplication is what most of these commands take.
const anApplication = "the name of an application"

const appsHelp = `An application serves one or several models under one name. Its policy chooses among the models,
combines their answers, and learns from feedback. shivactl policies lists the policies and their parameters.

Name a model as NAME (its default version), NAME/VERSION, or 'NAME/*' (all versions that are ready). A model that the
server does not know yet is allowed, with a warning. --slo is the deadline of requests that bring none. --default is
the answer when no model has answered in time: a JSON object with the value of one row for each output. Without a
default such a request fails. --keep says how many frames of a stream may wait if the request does not say it: all,
latest or a number. Without it the models' setting keep applies. apps change changes only what you give. There --model
replaces all links (shivactl links adds one); --slo '', --keep '' and --default null remove a value; --param NAME=
resets a parameter to its default.

With --json: {"apps": [{"name", "models", "policy", "params", "slo", "keep", "default"}]}, and of
one application {"name", ...}
`

const appsExample = `  shivactl apps create digits-app --model digits --model digits-old/1 --policy exp4 \
    --param eta=0.3 --slo 50ms --default '{"label": -1}'
  shivactl apps change digits-app --slo 80ms --param eta=
  shivactl apps delete digits-app
`

// appOptions are the members of an application that were given as flags.
type appOptions struct{ members map[string]any }

// appFlags adds the flags of create and of change.
func (c *cli) appFlags(cmd *cobra.Command) *appOptions {
	o := &appOptions{map[string]any{}}
	f := cmd.Flags()
	f.Func("model", "link to `MODEL`, as NAME, NAME/VERSION or NAME/*; may be repeated", func(s string) error {
		models, _ := o.members["models"].([]string)
		o.members["models"] = append(models, s)
		return nil
	})
	f.Func("policy", "the policy `NAME` (default single)", func(s string) error {
		o.members["policy"] = s
		return nil
	})
	f.Func("param", "a parameter of the policy, `NAME=VALUE`; may be repeated", func(s string) error {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" {
			return fmt.Errorf("expected NAME=VALUE, got %q", s)
		}
		params, _ := o.members["params"].(map[string]any)
		if params == nil {
			params = map[string]any{}
			o.members["params"] = params
		}
		switch {
		case value == "":
			params[name] = nil
		case json.Valid([]byte(value)):
			params[name] = json.RawMessage(value)
		default:
			params[name] = value
		}
		return nil
	})
	f.Func("slo", "deadline of requests that bring none, a `TIME` such as 50ms", func(s string) error {
		o.members["slo"] = s
		return nil
	})
	f.Func("keep", "how many frames of a stream may wait: all, latest or a `NUMBER`",
		func(s string) error {
			o.members["keep"] = s
			return nil
		})
	f.Func("default", "the answer if no model answers in time, a `JSON` object by output", func(s string) error {
		if !json.Valid([]byte(s)) {
			return fmt.Errorf("expected JSON such as {\"label\": -1}, got %q", s)
		}
		o.members["default"] = json.RawMessage(s)
		return nil
	})
	c.completeFlag(cmd, "model", linkNames)
	c.completeFlag(cmd, "policy", policyNames)
	c.completeFlag(cmd, "param", paramNames)
	c.completeFlag(cmd, "keep", keepWords)
	return o
}

func (c *cli) listApps() error {
	return fetch(c, "/v1/apps", func(list admin.AppList) error {
		if len(list.Apps) == 0 {
			fmt.Fprintln(c.stdout, "no applications; shivactl help apps tells how to make one")
			return nil
		}
		g := newGrid("APPLICATION\tPOLICY\tMODELS\tSLO\tDEFAULT", "DEFAULT\tSLO\tPOLICY")
		for _, a := range list.Apps {
			g.add("%s\t%s\t%s\t%s\t%s", a.Name, a.Policy, strings.Join(a.Models, " "), cmp.Or(a.SLO, "-"),
				cmp.Or(onOneLine(a.Default), "-"))
		}
		return g.write(c.stdout, c.width())
	})
}

func (c *cli) showApp(name string) error {
	return fetch(c, apiPath("/v1/apps/%s", name), c.printApp)
}

func (c *cli) printApp(a admin.App) error {
	if c.json {
		return c.printJSON(a)
	}
	g := newList()
	g.add("application\t%s", a.Name)
	g.add("models\t%s", strings.Join(a.Models, " "))
	g.add("policy\t%s", a.Policy)
	if len(a.Params) > 0 {
		params, err := json.Marshal(a.Params)
		if err != nil {
			return err
		}
		g.add("params\t%s", params)
	}
	g.add("slo\t%s", cmp.Or(a.SLO, "that of the model"))
	g.add("keep\t%s", cmp.Or(a.Keep.String(), "that of the model"))
	g.add("default\t%s", cmp.Or(onOneLine(a.Default), "none"))
	return g.write(c.stdout, c.width())
}

// onOneLine returns JSON without white space.
func onOneLine(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil { // an empty text
		return ""
	}
	return b.String()
}

func (c *cli) createApp(o *appOptions, name string) error {
	o.members["name"] = name
	var a admin.App
	if err := c.send(http.MethodPost, "/v1/apps", o.members, &a); err != nil {
		return err
	}
	c.doubtLinks(a.Models, "the link means nothing")
	return c.printApp(a)
}

func (c *cli) changeApp(o *appOptions, name string) error {
	if len(o.members) == 0 {
		return usage("apps", "what to change? such as --slo 50ms")
	}
	var a admin.App
	if err := c.send(http.MethodPatch, apiPath("/v1/apps/%s", name), o.members, &a); err != nil {
		return err
	}
	if o.members["models"] != nil {
		c.doubtLinks(a.Models, "the link means nothing")
	}
	return c.printApp(a)
}

// deleteApp deletes an application.
func (c *cli) deleteApp(name string) error {
	return order(c, http.MethodDelete, apiPath("/v1/apps/%s", name), nil, func(a admin.App) error {
		fmt.Fprintf(c.stdout, "application %s is deleted\n", a.Name)
		return nil
	})
}

func (c *cli) linksCommand() *cobra.Command {
	links := &cobra.Command{
		Use: "links APP", Short: "list, add or remove the models of an application",
		Long: `Prints a line for each link, with the versions that it means now. A link is NAME (the model's default
version), NAME/VERSION, or 'NAME/*' (all versions that are ready). A new version inherits what the policy has learned.

With --json: the application, as shivactl apps has it
`,
		Example: `  shivactl links add digits-app digits/2
  shivactl links delete digits-app digits/1
`,
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error {
			return fetch(c, apiPath("/v1/apps/%s", args[0]), c.printLinks)
		}),
	}
	add := &cobra.Command{
		Use: "add APP MODEL", Short: "add a model to an application",
		Args: appAndModel, ValidArgsFunction: c.completes(appNames, linkNames),
		RunE: c.asks(func(c *cli, args []string) error {
			links, added := apiPath("/v1/apps/%s/links", args[0]), map[string]string{"model": args[1]}
			return submit(c, http.MethodPost, links, added, c.printLinks)
		}),
	}
	remove := &cobra.Command{
		Use: "delete APP MODEL", Short: "remove a model from an application",
		Args: appAndModel, ValidArgsFunction: c.completes(appNames, linkNames),
		RunE: c.asks(func(c *cli, args []string) error {
			link := apiPath("/v1/apps/%s/links", args[0]) + "?model=" + url.QueryEscape(args[1])
			return order(c, http.MethodDelete, link, nil, c.printLinks)
		}),
	}
	return with(c.watched(links), add, c.deleting(remove, "the link of application %s to %s"))
}

func appAndModel(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return usage("links", "expected an application and a model, got %s", plural.Of(len(args), "argument"))
	}
	return nil
}

func (c *cli) printLinks(a admin.App) error {
	var list admin.ModelList
	if err := c.get("/v1/models", &list); err != nil {
		return err
	}
	g := newGrid("LINK\tMEANS NOW", "")
	for _, link := range a.Models {
		now := strings.Join(linkedVersions(link, list.Models), " ")
		g.add("%s\t%s", link, cmp.Or(now, "nothing: no container of it has registered"))
	}
	return g.write(c.stdout, c.width())
}

// doubtLinks warns of links to what the server has not heard of. That is allowed, as an application
// may be made before its models, but often a name is mistyped. until says what is so until they
// come; besides are other names that links may have.
func (c *cli) doubtLinks(links []string, until string, besides ...string) {
	var list admin.ModelList
	if c.get("/v1/models", &list) != nil {
		return // the application is made, and only the warning is lost
	}
	for _, link := range links {
		name, version, _ := strings.Cut(link, "/")
		numbered := version != "" && version != "*"
		known := slices.Clone(besides)
		for _, m := range list.Models {
			if known = append(known, m.Name); numbered {
				known = append(known, m.Name+"/"+m.Version)
			}
		}
		if !numbered {
			link = name
		}
		if slices.Contains(known, link) {
			continue
		}
		fmt.Fprintf(c.stderr, "shivactl: no container of %s has registered yet: until one does, %s\n", link, until)
		slices.Sort(known)
		if hint := didYouMean(link, slices.Compact(known)); hint != "" {
			fmt.Fprintln(c.stderr, "  ->", hint)
		}
	}
}

// linkedVersions returns the versions that a link means.
func linkedVersions(link string, models []admin.Model) (versions []string) {
	name, version, _ := strings.Cut(link, "/")
	for _, m := range models {
		if m.Name == name && (m.Version == version || version == "" && m.Default || version == "*" && m.Ready) {
			versions = append(versions, m.Name+"/"+m.Version)
		}
	}
	return versions
}
