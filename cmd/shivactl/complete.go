package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

// askTime bounds the wait for the server's names: the user waits at the keyboard.
const askTime = time.Second

// A finder returns the words that may stand after args; last is the beginning of the next one. It
// knows none if the server does not answer. Candidates that end in "=" are to be continued.
type finder func(c *cli, args []string, last string) []string

// anyFile is left to the shell.
var anyFile finder

// completes makes the completion of a command's arguments, with one finder for each; without more
// of them there are no more arguments.
func (c *cli) completes(each ...finder) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return c.candidates(each[len(args)], cmd, args, last)
	}
}

// completesMore is completes for a command whose last argument may be repeated.
func (c *cli) completesMore(each ...finder) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
		return c.candidates(each[min(len(args), len(each)-1)], cmd, args, last)
	}
}

// completeFlag has the values of a flag completed.
func (c *cli) completeFlag(cmd *cobra.Command, name string, find finder) {
	err := cmd.RegisterFlagCompletionFunc(name,
		func(cmd *cobra.Command, args []string, last string) ([]string, cobra.ShellCompDirective) {
			return c.candidates(find, cmd, args, last)
		})
	if err != nil {
		panic(err) // the flag is not defined
	}
}

func (c *cli) candidates(find finder, cmd *cobra.Command, args []string,
	last string) (found []string, then cobra.ShellCompDirective) {
	if find == nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	then = cobra.ShellCompDirectiveNoFileComp
	ctx, cancel := context.WithTimeout(c.ctx, askTime)
	defer cancel()
	bounded := *c
	bounded.ctx = ctx
	bounded.recordGiven(cmd)
	// Which profiles there are does not depend on that which is chosen.
	if err := bounded.applyProfile(); err != nil {
		bounded.admin = ""
	}
	for _, word := range find(&bounded, args, last) {
		if strings.HasPrefix(word, last) {
			found = append(found, word)
		}
		if strings.HasSuffix(word, "=") {
			then |= cobra.ShellCompDirectiveNoSpace
		}
	}
	return found, then
}

// oneOf finds words that are always the same.
func oneOf(words ...string) finder {
	return func(*cli, []string, string) []string { return words }
}

var keepWords = oneOf("all", "latest")

func profileNames(*cli, []string, string) []string {
	_, all, _ := profiles()
	return slices.Sorted(maps.Keys(all))
}

func modelNames(c *cli, _ []string, _ string) (found []string) {
	for _, m := range c.allModels() {
		found = append(found, m.Name)
	}
	return slices.Compact(found)
}

// versionsOf finds the versions of the model before it.
func versionsOf(c *cli, args []string, _ string) (found []string) {
	for _, m := range c.allModels() {
		if len(args) > 0 && m.Name == args[0] {
			found = append(found, m.Version)
		}
	}
	return found
}

// linkNames finds models and their versions.
func linkNames(c *cli, _ []string, _ string) (found []string) {
	for _, m := range c.allModels() {
		if !slices.Contains(found, m.Name) {
			found = append(found, m.Name)
		}
		found = append(found, m.Name+"/"+m.Version)
	}
	return found
}

func appNames(c *cli, _ []string, _ string) (found []string) {
	var list admin.AppList
	_ = c.get("/v1/apps", &list)
	for _, a := range list.Apps {
		found = append(found, a.Name)
	}
	return found
}

// servedNames finds models and applications.
func servedNames(c *cli, args []string, last string) []string {
	return append(modelNames(c, args, last), appNames(c, args, last)...)
}

// routeNames finds models, their versions, and applications.
func routeNames(c *cli, args []string, last string) []string {
	return append(linkNames(c, args, last), appNames(c, args, last)...)
}

func policyNames(c *cli, _ []string, _ string) (found []string) {
	for _, p := range c.allPolicies() {
		found = append(found, p.Name)
	}
	return found
}

// paramNames finds NAME= of every policy's parameters.
func paramNames(c *cli, _ []string, _ string) (found []string) {
	for _, p := range c.allPolicies() {
		for _, one := range p.Parameters {
			found = append(found, one.Name+"=")
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

func containerNames(c *cli, _ []string, _ string) (found []string) {
	var list admin.Containers
	_ = c.get("/v1/containers", &list)
	for _, one := range list.Containers {
		found = append(found, one.Name)
	}
	return found
}

func configKeys(c *cli, _ []string, _ string) []string {
	var all map[string]any
	_ = c.get("/v1/config", &all)
	lines := map[string]string{}
	flatten(lines, "", all)
	return slices.Sorted(maps.Keys(lines))
}

// onlyInFile are the settings of a model that only the server's file can change.
var onlyInFile = []string{"batched", "cast", "deadline", "latest"}

// settingNames finds the settings of the model named first that can be set, except those already on
// the line.
func settingNames(c *cli, args []string, _ string) (found []string) {
	for _, m := range c.allModels() {
		policy, _ := m.Policy.(map[string]any)
		if m.Name != args[0] || policy == nil {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(policy)) {
			named := func(word string) bool { word, _, _ = strings.Cut(word, "="); return word == key }
			if !slices.Contains(onlyInFile, key) && !slices.ContainsFunc(args[1:], named) {
				found = append(found, key)
			}
		}
		return found
	}
	return nil
}

// settings finds KEY= of the model named first, and after a key its values.
func settings(c *cli, args []string, last string) (found []string) {
	key, _, assigned := strings.Cut(last, "=")
	if !assigned {
		for _, name := range settingNames(c, args, last) {
			found = append(found, name+"=")
		}
		return found
	}
	values := map[string]finder{"keep": keepWords, "default_version": versionsOf}[key]
	if values == nil {
		return nil
	}
	for _, value := range values(c, args, last) {
		found = append(found, key+"="+value)
	}
	return found
}

func (c *cli) allModels() []admin.Model {
	var list admin.ModelList
	_ = c.get("/v1/models", &list)
	return list.Models
}

func (c *cli) allPolicies() []admin.Policy {
	var list admin.PolicyList
	_ = c.get("/v1/policies", &list)
	return list.Policies
}
