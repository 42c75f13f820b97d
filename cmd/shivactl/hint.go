package main

import (
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/shivad/shivad/shiva/nearest"
)

// didYouMean returns the hint for a mistyped word; "" if no known word is near.
func didYouMean(word string, known []string) string {
	near := nearest.Names(word, known)
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// noCommand is the failure of a command that does not exist.
func noCommand(name string) error {
	all := append(names(commands()), "help")
	if hint := didYouMean(name, all); hint != "" {
		return &failure{"usage", fmt.Sprintf("there is no command %q", name), hint, exitUsage}
	}
	return usage("", "there is no command %q; the commands are %s", name, strings.Join(all, ", "))
}

// badFlag is the failure of flags that could not be parsed.
func badFlag(command string, f *flag.FlagSet, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		// Package flag takes --watch for a boolean flag, since its value may be left out.
		return usage(command, "%s", strings.Replace(err.Error(), "invalid boolean value", "invalid value", 1))
	}
	var all []string
	f.VisitAll(func(fl *flag.Flag) { all = append(all, fl.Name) })
	var near []string
	for _, n := range nearest.Names(name, all) {
		near = append(near, "--"+n)
	}
	if near == nil {
		return usage(command, "there is no flag --%s", name)
	}
	return &failure{"usage", "there is no flag --" + name, "did you mean " + strings.Join(near, " or ") + "?", exitUsage}
}

// mistyped adds a hint to the failure of a command with verbs if its first argument is nearly a
// verb: "apps lsit" asks the server for an application of that name.
func (cmd command) mistyped(err error, positional []string) error {
	f, ok := errors.AsType[*failure](err)
	if !ok || f.code == exitUnreachable || len(positional) == 0 {
		return err
	}
	var verbs []string
	for _, v := range cmd.verbs {
		_, word, _ := strings.Cut(v.name, " ")
		verbs = append(verbs, word)
	}
	if near := nearest.Names(positional[0], verbs); near != nil {
		f.Hint = fmt.Sprintf("did you mean shivactl %s %s?", cmd.name, near[0])
	}
	return f
}
