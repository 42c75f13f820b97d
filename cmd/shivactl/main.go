// Command shivactl is the tool for operators and users of shivad: it sends requests to models over
// the TCP door, and shows and changes the server's state through its admin door. See "shivactl
// help".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/shivad/shivad/server/build"
	"github.com/shivad/shivad/shiva/token"
	"github.com/shivad/shivad/shiva/unixsocket"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// command is a subcommand, or a verb of a subcommand, whose name is then both words.
type command struct {
	name, args, short string
	help              string // the rest of its help, before the flags
	// Registers its own flags; the result is passed to run.
	flags func(*flag.FlagSet) any
	run   func(c *cli, opts any, args []string) error
	verbs []command
	// The kinds of its arguments, for completion; the last one repeats.
	takes   []kind
	timeout time.Duration // unless the user sets one; 0: that of all commands
	// What the command deletes, with a %s for each argument; it then asks for confirmation. "":
	// nothing.
	deletes string
	watches bool // it has --watch
	// The interval at which its own flags make it repeat its output; 0, or a nil function: once.
	every   func(opts any) time.Duration
	follows bool // each repetition shows only what is new
}

func commands() []command {
	return []command{
		inferCommand, benchCommand, feedbackCommand,
		appsCommand, linksCommand, policiesCommand,
		modelsCommand, versionsCommand, cacheCommand, containersCommand, configCommand, reloadCommand, explainCommand, streamsCommand, historyCommand, auditCommand, logsCommand, statusCommand, topCommand,
		exportCommand, importCommand,
		tokensCommand, whoamiCommand,
		profilesCommand, completionCommand, versionCommand,
	}
}

// verb finds a verb by its own word.
func (cmd command) verb(word string) (command, bool) {
	for _, v := range cmd.verbs {
		if v.name == cmd.name+" "+word {
			return v, true
		}
	}
	return cmd, false
}

// cli is the part that all subcommands share.
type cli struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer

	addr, admin string
	profile     string // "": none
	tls         tlsFlags
	token       *token.Source
	timeout     time.Duration
	timed       bool // the user has set timeout
	json        bool
	yes         bool          // delete without confirmation
	every       time.Duration // interval at which to repeat the output; 0: show it once

	given map[string]bool // flags, by name
}

const defaultAddr = "127.0.0.1:6174"

// register adds the flags that all subcommands have. Their defaults are their values so far, so
// they may stand before the subcommand as well as after it.
func (c *cli) register(f *flag.FlagSet) {
	f.Var(address{&c.addr}, "addr", "the server's TCP door, as `HOST:PORT`, tls://HOST:PORT or unix:PATH")
	f.Var(address{&c.admin}, "admin", "its admin door, as `HOST:PORT`, tls://HOST:PORT or unix:PATH")
	f.StringVar(&c.profile, "profile", c.profile, "the server that is called `NAME` in the file of profiles: shivactl help profiles")
	c.tls.register(f)
	f.Var(timeoutFlag{c}, "timeout", "how long to wait for all that is asked, as a `TIME` with a unit")
	f.BoolVar(&c.json, "json", c.json, "print JSON, for programs; see the help of each command")
}

// address is --addr or --admin.
type address struct{ of *string }

func (a address) String() string {
	if a.of == nil { // package flag asks the zero value
		return ""
	}
	return *a.of
}

func (a address) Set(text string) error {
	*a.of = text
	return unixsocket.CheckAddress(text)
}

// timeoutFlag is the value of --timeout: a duration above 0.
type timeoutFlag struct{ c *cli }

func (p timeoutFlag) String() string {
	if p.c == nil { // package flag asks the zero value
		return ""
	}
	return p.c.timeout.String()
}

func (p timeoutFlag) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errors.New("expected a time above 0 with its unit, such as 30s or 500ms")
	}
	p.c.timeout, p.c.timed = d, true
	return nil
}

// run is main with its environment as arguments. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{
		ctx: ctx, stdin: stdin, stdout: printer{stdout}, stderr: printer{stderr},
		addr: defaultAddr, admin: "127.0.0.1:8002", timeout: 30 * time.Second,
		token: token.Fixed(""), given: map[string]bool{},
	}
	err := c.dispatch(args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	return c.report(err)
}

// dispatch finds the subcommand and runs it.
func (c *cli) dispatch(args []string) error {
	global := newFlagSet("shivactl")
	c.register(global)
	own := global.Bool("version", false, "")
	if err := global.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			c.overview()
			return err
		}
		return badFlag("", global, err)
	}
	if *own {
		fmt.Fprintln(c.stdout, build.Line("shivactl"))
		return nil
	}
	c.note(global)
	if global.NArg() == 0 {
		c.overview()
		return usage("", "which command? see above")
	}
	name, args := global.Arg(0), global.Args()[1:]
	if name == "help" {
		return c.helpOn(args)
	}
	if name == completing {
		return c.complete(args)
	}
	cmd, ok := commandOf(name)
	if !ok {
		return noCommand(name)
	}
	if len(args) > 0 {
		if verb, ok := cmd.verb(args[0]); ok {
			cmd, args = verb, args[1:]
		}
	}
	return c.perform(cmd, args)
}

// perform runs a command, or a verb of one.
func (c *cli) perform(cmd command, args []string) error {
	f, opts := c.flagsOf(cmd)
	positional, err := parseAnywhere(f, args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		c.helpFor(cmd)
		return err
	case err != nil:
		return badFlag(cmd.name, f, err)
	}
	c.note(f)
	if err := c.applyProfile(); err != nil {
		return err
	}
	if !c.timed && cmd.timeout > 0 {
		c.timeout = cmd.timeout
	}
	if err := c.confirm(cmd, positional); err != nil {
		return err
	}
	once := func(c *cli) error {
		ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
		defer cancel()
		bounded := *c
		bounded.ctx = ctx
		return cmd.run(&bounded, opts, positional)
	}
	if cmd.every != nil {
		c.every = cmd.every(opts)
	}
	switch {
	case c.every == 0:
		err = once(c)
	case cmd.follows:
		err = c.follow(once)
	default:
		err = c.refresh(once)
	}
	return cmd.mistyped(err, positional)
}

// commandOf finds a command by its name.
func commandOf(name string) (command, bool) {
	for _, cmd := range commands() {
		if cmd.name == name {
			return cmd, true
		}
	}
	return command{}, false
}

// flagsOf returns all flags of a command, and the options that its own flags set.
func (c *cli) flagsOf(cmd command) (f *flag.FlagSet, opts any) {
	f = newFlagSet(cmd.name)
	opts = cmd.options(f)
	c.register(f)
	if cmd.deletes != "" {
		f.BoolVar(&c.yes, "yes", c.yes, "do it without asking")
	}
	if cmd.watches {
		f.Var(watchFlag{c}, "watch", "show it again every two seconds until Ctrl-C, or as often as you say: --watch=10s")
	}
	return f, opts
}

// note records which flags were given.
func (c *cli) note(f *flag.FlagSet) { f.Visit(func(fl *flag.Flag) { c.given[fl.Name] = true }) }

func (cmd command) options(f *flag.FlagSet) any {
	if cmd.flags == nil {
		return nil
	}
	return cmd.flags(f)
}

func newFlagSet(name string) *flag.FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller prints errors and help, once
	return f
}

// parseAnywhere parses flags before, between and after the positional arguments, which it returns.
// Everything after "--" is positional.
func parseAnywhere(f *flag.FlagSet, args []string) (positional []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		rest := f.Args()
		if parsed := len(args) - len(rest); parsed > 0 && args[parsed-1] == "--" {
			return append(positional, rest...), nil
		}
		if len(rest) == 0 {
			return positional, nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}

func names(cmds []command) []string {
	var out []string
	for _, cmd := range cmds {
		out = append(out, cmd.name)
	}
	return out
}

// overview is the help for all subcommands.
func (c *cli) overview() {
	fmt.Fprint(c.stdout, "shivactl asks a shivad for predictions, shows what it does and changes it.\n\nUsage: shivactl COMMAND [arguments] [flags]\n\n")
	for _, cmd := range commands() {
		fmt.Fprintf(c.stdout, "  %-24s %s\n", cmd.name+" "+cmd.args, cmd.short)
	}
	fmt.Fprintf(c.stdout, "  %-24s %s\n\nFlags of all commands, before or after it:\n\n", "help COMMAND [VERB]", "more about a command")
	f := newFlagSet("")
	c.register(f)
	printFlags(c.stdout, f)
	fmt.Fprint(c.stdout, "\nVariables: SHIVACTL_ADDR, SHIVACTL_ADMIN, SHIVACTL_PROFILE and SHIVACTL_TOKEN, where no flag says it: shivactl help profiles.\n")
	fmt.Fprint(c.stdout, "\nExit code: 0 done, 1 the server refused or failed some of it, 2 wrong arguments or unfit files, 3 no\nserver or no answer in time.\n")
}

func (c *cli) helpOn(args []string) error {
	if len(args) == 0 {
		c.overview()
		return nil
	}
	cmd, ok := commandOf(args[0])
	if !ok {
		return noCommand(args[0])
	}
	if len(args) > 1 {
		verb, ok := cmd.verb(args[1])
		if !ok {
			return cmd.mistyped(usage(cmd.name, "%s has no %q", cmd.name, args[1]), args[1:])
		}
		cmd = verb
	}
	c.helpFor(cmd)
	return nil
}

func (c *cli) helpFor(cmd command) {
	fmt.Fprintf(c.stdout, "shivactl %s: %s\n\nUsage: shivactl %s [flags]\n", cmd.name, cmd.short, strings.TrimSpace(cmd.name+" "+cmd.args))
	for _, v := range cmd.verbs {
		fmt.Fprintf(c.stdout, "       shivactl %s [flags]\n", strings.TrimSpace(v.name+" "+v.args))
	}
	fmt.Fprintf(c.stdout, "\n%s\nFlags:\n\n", cmd.help)
	f, _ := c.flagsOf(cmd)
	printFlags(c.stdout, f)
}

// printFlags lists flags with two dashes, one line each.
func printFlags(w io.Writer, f *flag.FlagSet) {
	f.VisitAll(func(fl *flag.Flag) {
		value, text := flag.UnquoteUsage(fl)
		if fl.DefValue != "" && fl.DefValue != "false" {
			text += " (default " + fl.DefValue + ")"
		}
		fmt.Fprintf(w, "  %-22s %s\n", strings.TrimSpace("--"+fl.Name+" "+value), text)
	})
}
