// Command shivactl is the tool for operators and users of shivad: it sends requests to models over
// the TCP door, and shows and changes the server's state through its admin door. See "shivactl
// help".
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shivad/shivad/server/build"
	"github.com/shivad/shivad/shiva/token"
	"github.com/shivad/shivad/shiva/unixsocket"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
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
	doing       string        // what the user waits for; "": an answer
	every       time.Duration // interval at which to repeat the output; 0: show it once
	follows     bool          // each repetition shows only what is new
	columns     int           // width of the terminal that the output is for; 0: see width

	given map[string]bool // flags, by name, that the user, a variable or a profile sets
}

const defaultAddr = "127.0.0.1:6174"

// run is main with its environment as arguments. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{
		ctx: ctx, stdin: stdin, stdout: printer{stdout}, stderr: printer{stderr},
		addr: defaultAddr, admin: "127.0.0.1:8002", timeout: 30 * time.Second,
		token: token.Fixed(""), given: map[string]bool{},
	}
	root := c.root()
	root.SetArgs(twoDashes(root, args))
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	return c.report(mistyped(cmd, err))
}

// root returns shivactl with all of its subcommands.
func (c *cli) root() *cobra.Command {
	own := false
	root := &cobra.Command{
		Use: "shivactl COMMAND [arguments]", Short: "send requests to shivad, show what it does, and administer it",
		Long:          about + "\n\n" + notes,
		SilenceErrors: true, SilenceUsage: true, // run reports errors, once
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}, // ours knows --json
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              cobra.ArbitraryArgs,
		PersistentPreRunE: c.prepare,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case own:
				fmt.Fprintln(c.stdout, build.Line("shivactl"))
				return nil
			case len(args) > 0:
				return noCommand(cmd, args[0])
			}
			overview(cmd)
			return usage("", "which command? see above")
		},
	}
	root.Flags().BoolVar(&own, "version", false, "print the version of shivactl itself")
	c.register(root.PersistentFlags())
	c.completeFlag(root, "profile", profileNames)
	root.SetIn(c.stdin)
	root.SetOut(c.stdout)
	root.SetErr(c.stderr)
	root.SetHelpFunc(help)
	root.SetFlagErrorFunc(badFlag)
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Requests", []*cobra.Command{c.inferCommand(), c.latestCommand(), c.feedbackCommand(), c.benchCommand()}},
		{"Models and applications", []*cobra.Command{
			c.modelsCommand(), c.versionsCommand(), c.cacheCommand(), c.streamsCommand(), c.containersCommand(),
			c.appsCommand(), c.linksCommand(), c.policiesCommand(), c.pipelinesCommand(),
		}},
		{"The server", []*cobra.Command{
			c.statusCommand(), c.topCommand(), c.explainCommand(), c.historyCommand(), c.auditCommand(),
			c.logsCommand(), c.initCommand(), c.doctorCommand(),
			c.configCommand(), c.reloadCommand(), c.exportCommand(), c.importCommand(),
		}},
		{"Other", []*cobra.Command{
			c.whoamiCommand(), c.tokensCommand(), c.profilesCommand(), c.completionCommand(), c.manualCommand(),
			c.versionCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("Other")
	root.InitDefaultHelpCmd()
	root.AddCommand(manCommand())
	if helper, _, err := root.Find([]string{"help"}); err == nil {
		helper.Short, helper.Args = "show the help of a command", knownTopic
	}
	return root
}

// register adds the flags that all subcommands have. They may stand before the subcommand as well
// as after it.
func (c *cli) register(f *pflag.FlagSet) {
	f.BoolP("help", "h", false, "show the help of a command")
	f.Var(address{&c.addr}, "addr", "the server's Shiva endpoint: `HOST:PORT`, tls://HOST:PORT or unix:PATH")
	f.Var(address{&c.admin}, "admin", "the server's admin API: `HOST:PORT`, tls://HOST:PORT or unix:PATH")
	f.StringVar(&c.profile, "profile", c.profile, "use the server called `NAME` in your profiles (shivactl help profiles)")
	c.tls.register(f)
	f.Var(timeoutFlag{c}, "timeout", "time limit of the whole command, a `TIME` with a unit")
	f.BoolVar(&c.json, "json", c.json, "print JSON for programs; the help of each command describes it")
}

// address is --addr or --admin.
type address struct{ of *string }

func (a address) String() string { return *a.of }
func (a address) Type() string   { return "address" }

func (a address) Set(text string) error {
	*a.of = text
	return unixsocket.CheckAddress(text)
}

// timeoutFlag is the value of --timeout: a duration above 0.
type timeoutFlag struct{ c *cli }

func (p timeoutFlag) String() string { return p.c.timeout.String() }
func (p timeoutFlag) Type() string   { return "time" }

func (p timeoutFlag) Set(text string) error {
	d, err := period(text)
	if err == nil {
		p.c.timeout, p.c.timed = d, true
	}
	return err
}
