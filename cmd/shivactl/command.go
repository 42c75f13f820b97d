package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shivad/shivad/shiva/plural"
)

// prepare runs before every command, and not before help.
func (c *cli) prepare(cmd *cobra.Command, _ []string) error {
	if !cmd.HasParent() {
		return nil
	}
	c.recordGiven(cmd)
	return c.applyProfile()
}

// recordGiven records which flags were given.
func (c *cli) recordGiven(cmd *cobra.Command) {
	cmd.Flags().Visit(func(f *pflag.Flag) { c.given[f.Name] = true })
}

// asks makes do, which is all that a command does, the RunE of a cobra.Command: it is called once,
// within the time that --timeout has set, or again and again if the user watches.
func (c *cli) asks(do func(c *cli, args []string) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		once := func(c *cli) error {
			ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
			defer cancel()
			bounded := *c
			bounded.ctx = ctx
			return do(&bounded, args)
		}
		switch {
		case c.every == 0:
			return once(c)
		case c.follows:
			return c.follow(once)
		default:
			return c.refresh(once)
		}
	}
}

// watched gives a command the flag --watch.
func (c *cli) watched(cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags().VarPF(watchFlag{c}, "watch", "", "refresh every two seconds until Ctrl-C; --watch=10s sets another interval")
	f.NoOptDefVal = "true"
	return cmd
}

// patient gives a command more time than the others have, unless the user sets one.
func (c *cli) patient(cmd *cobra.Command, most time.Duration) *cobra.Command {
	cmd.PreRun = func(*cobra.Command, []string) {
		if !c.timed {
			c.timeout = most
		}
	}
	return cmd
}

// deleting makes a command ask for confirmation before it deletes what, which has a %s for each of
// its arguments.
func (c *cli) deleting(cmd *cobra.Command, what string) *cobra.Command {
	cmd.Flags().BoolVar(&c.yes, "yes", c.yes, "do not ask for confirmation")
	cmd.PreRunE = func(_ *cobra.Command, args []string) error { return c.confirm(what, args) }
	return cmd
}

// with adds the verbs of a command.
func with(cmd *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	for _, v := range verbs {
		v.Long = "More about it: shivactl help " + cmd.Name()
	}
	cmd.AddCommand(verbs...)
	return cmd
}

// noArguments refuses the arguments of a command that takes none.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(topic(cmd), "unexpected argument %q", args[0])
	}
	return nil
}

// oneArgument requires exactly one argument, which is what.
func oneArgument(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usage(topic(cmd), "expected %s, got %s", what, plural.Of(len(args), "argument"))
		}
		return nil
	}
}

// atMostOne refuses a second argument, where the first may be left out.
func atMostOne(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usage(topic(cmd), "expected one %s, got %d", what, len(args))
		}
		return nil
	}
}
