package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shivad/shivad/shiva/nearest"
)

// helpColumns is the width of the help.
const helpColumns = 80

// help prints what a command does. The flags of all commands are printed once, by overview. It is
// no template: text/template calls methods by name, so that the linker would keep all of them.
func help(cmd *cobra.Command, _ []string) {
	if !cmd.HasParent() {
		overview(cmd)
		return
	}
	w := cmd.OutOrStdout()
	fmt.Fprintf(w, "%s: %s\n\nUsage: %s [flags]\n", cmd.CommandPath(), cmd.Short, call(cmd))
	for _, verb := range cmd.Commands() {
		fmt.Fprintf(w, "       %s [flags]\n", call(verb))
	}
	fmt.Fprintf(w, "\n%s\n", strings.TrimSpace(reflow(cmd.Long)))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintln(w, "\nCommands:")
		list(w, cmd.Commands())
		fmt.Fprintf(w, "\nFor their flags: shivactl help %s COMMAND\n", pathOf(cmd))
	}
	if cmd.HasExample() {
		fmt.Fprintf(w, "\nExamples:\n\n%s\n", strings.TrimRight(cmd.Example, "\n"))
	}
	if cmd.HasAvailableLocalFlags() {
		fmt.Fprintf(w, "\nFlags (shivactl help shows those of all commands):\n\n%s",
			cmd.LocalFlags().FlagUsagesWrapped(helpColumns))
	} else {
		fmt.Fprintln(w, "\nThis command has only the flags of all commands: shivactl help")
	}
}

// overview is the help for all subcommands.
func overview(root *cobra.Command) {
	w := root.OutOrStdout()
	fmt.Fprintf(w, "%s\n\nUsage: %s [flags]\n", about, call(root))
	for _, g := range root.Groups() {
		fmt.Fprintf(w, "\n%s:\n", g.Title)
		var members []*cobra.Command
		for _, cmd := range root.Commands() {
			if cmd.GroupID == g.ID {
				members = append(members, cmd)
			}
		}
		list(w, members)
	}
	fmt.Fprintf(w, "\nFlags of all commands, which may stand before or after the command:\n\n%s",
		root.PersistentFlags().FlagUsagesWrapped(helpColumns))
	fmt.Fprintf(w, "\n%s", notes)
}

// entry is a line of a list: an indented term, and what it means after two spaces.
var entry = regexp.MustCompile(`^ +\S.*?\S {2,}`)

// reflow wraps a text to the width of the help: its paragraphs, and the meanings in its lists, of
// which further lines are indented as the first. Other indented lines, such as commands, stay.
func reflow(text string) string {
	var out strings.Builder
	column, hanging := 0, 0 // of the line that is being written; of what continues it
	end := func() {
		if column > 0 {
			out.WriteString("\n")
		}
		column = 0
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		first := entry.FindString(line)
		switch indent := len(line) - len(trimmed); {
		case indent > 0 && column > 0 && indent == hanging: // it continues an entry
		case first != "":
			end()
			out.WriteString(first)
			column, hanging = utf8.RuneCountInString(first), utf8.RuneCountInString(first)
			trimmed = line[len(first):]
		case indent > 0 || line == "":
			end()
			out.WriteString(line + "\n")
			continue
		case hanging > 0:
			end()
			hanging = 0
		}
		for word := range strings.FieldsSeq(trimmed) {
			n := utf8.RuneCountInString(word)
			switch {
			case column > hanging && column+1+n > helpColumns:
				out.WriteString("\n" + strings.Repeat(" ", hanging))
				column = hanging
			case column > hanging:
				out.WriteString(" ")
				column++
			}
			out.WriteString(word)
			column += n
		}
	}
	end()
	return out.String()
}

const (
	about = "shivactl sends requests to shivad, shows what it does, and administers it."
	notes = `The variables SHIVACTL_ADDR, SHIVACTL_ADMIN, SHIVACTL_PROFILE and SHIVACTL_TOKEN
stand in for missing flags: shivactl help profiles.

Exit code: 0 success, 1 the server refused something or failed, 2 wrong
arguments or files, 3 no server was reached, or it did not answer in time.
`
)

// call is how the user calls a command with its arguments.
func call(cmd *cobra.Command) string { return strings.TrimSuffix(cmd.UseLine(), " [flags]") }

// list prints a line for each command.
func list(w io.Writer, commands []*cobra.Command) {
	for _, cmd := range commands {
		if !cmd.Hidden {
			fmt.Fprintf(w, "  %-12s %s\n", cmd.Name(), cmd.Short)
		}
	}
}

// topic is the command, without its verb, whose help tells more about cmd.
func topic(cmd *cobra.Command) string {
	for cmd.HasParent() && cmd.Parent().HasParent() {
		cmd = cmd.Parent()
	}
	return pathOf(cmd)
}

// pathOf is how the user calls a command, without shivactl itself.
func pathOf(cmd *cobra.Command) string {
	return strings.TrimPrefix(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()), " ")
}

// didYouMean returns the hint for a mistyped word; "" if no known word is near.
func didYouMean(word string, known []string) string {
	near := nearest.Names(word, known)
	if len(near) == 0 {
		return ""
	}
	return "did you mean " + strings.Join(near, " or ") + "?"
}

// noCommand is the failure of a command that does not exist.
func noCommand(root *cobra.Command, name string) error {
	if near := suggestions(root, name); len(near) > 0 {
		return &failure{"usage", fmt.Sprintf("there is no command %q", name),
			"did you mean " + strings.Join(near, " or ") + "?", exitUsage}
	}
	var all []string
	for _, cmd := range root.Commands() {
		if !cmd.Hidden {
			all = append(all, cmd.Name())
		}
	}
	return usage("", "there is no command %q; the commands are %s", name, strings.Join(all, ", "))
}

// suggestions returns the subcommands that a word may stand for.
func suggestions(cmd *cobra.Command, word string) []string {
	cmd.SuggestionsMinimumDistance = 2 // as in errors of cobra's own
	return cmd.SuggestionsFor(word)
}

// knownTopic refuses help about what is no command.
func knownTopic(helper *cobra.Command, args []string) error {
	cmd, rest, err := helper.Root().Find(args)
	switch {
	case err != nil || len(rest) == 0:
		return err
	case !cmd.HasParent():
		return noCommand(cmd, rest[0])
	}
	return suggest(cmd, usage(pathOf(cmd), "%s has no %q", pathOf(cmd), rest[0]), rest[0])
}

// badFlag is the failure of flags that could not be parsed.
func badFlag(cmd *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return usage(pathOf(cmd), "invalid value %q for flag --%s: %v", e.GetValue(), e.GetFlag().Name, e.Unwrap())
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return usage(pathOf(cmd), "%v", err)
	}
	name := unknown.GetSpecifiedName()
	var all, near []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
	for _, n := range nearest.Names(name, all) {
		near = append(near, "--"+n)
	}
	if near == nil {
		return usage(pathOf(cmd), "there is no flag --%s", name)
	}
	return &failure{"usage", "there is no flag --" + name, "did you mean " + strings.Join(near, " or ") + "?", exitUsage}
}

// mistyped adds a hint to the failure of a command with verbs if its first argument is nearly a
// verb: "apps lsit" asks the server for an application of that name.
func mistyped(cmd *cobra.Command, err error) error {
	f, ok := errors.AsType[*failure](err)
	if args := cmd.Flags().Args(); ok && cmd.HasParent() && f.code != exitUnreachable && len(args) > 0 {
		return suggest(cmd, f, args[0])
	}
	return err
}

// suggest replaces the hint of a failure by the verb of a command that a word may stand for.
func suggest(cmd *cobra.Command, err error, word string) error {
	if f, ok := errors.AsType[*failure](err); ok {
		if near := suggestions(cmd, word); len(near) > 0 {
			f.Hint = fmt.Sprintf("did you mean %s %s?", cmd.CommandPath(), near[0])
		}
	}
	return err
}

// twoDashes returns args with two dashes before the names of flags. With one dash, as scripts have
// them, pflag takes each letter for a flag.
func twoDashes(root *cobra.Command, args []string) []string {
	valued := map[string]bool{}
	var collect func(cmd *cobra.Command)
	collect = func(cmd *cobra.Command) {
		for _, flags := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { valued[f.Name] = f.NoOptDefVal == "" })
		}
		for _, sub := range cmd.Commands() {
			collect(sub)
		}
	}
	collect(root)
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" {
			return append(out, args[i:]...)
		}
		name, _, assigned := strings.Cut(strings.TrimLeft(word, "-"), "=")
		isFlag := strings.HasPrefix(word, "-") && len(name) > 1
		if isFlag {
			word = "--" + strings.TrimLeft(word, "-")
		}
		if out = append(out, word); isFlag && !assigned && valued[name] && i+1 < len(args) {
			i++
			out = append(out, args[i])
		}
	}
	return out
}
