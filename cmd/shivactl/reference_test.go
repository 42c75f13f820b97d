package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shivad/shivad/server/manual/manualtest"
)

// The manual has the help of every command, which fits the width of a terminal but for commands.
func TestReference(t *testing.T) {
	var page strings.Builder
	page.WriteString(`# Commands of shivactl

<!-- words: shivactl, cli, command line, admin tool -->

This is the help of each command, as ` + "`shivactl help COMMAND`" + ` prints it. The help of shivactl
itself has the flags that all commands share; ` + "`shivad -h`" + ` has the flags of the server.
`)
	var out bytes.Buffer
	c := &cli{stdout: &out, stderr: &out, addr: defaultAddr, admin: "127.0.0.1:8002", timeout: 30 * time.Second,
		given: map[string]bool{}}
	root := c.root()
	commands := append([]*cobra.Command{root}, root.Commands()...)
	for _, cmd := range commands {
		if cmd.Hidden || cmd.Name() == "help" {
			continue
		}
		out.Reset()
		help(cmd, nil)
		root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
			if cmd != root && cmd.LocalNonPersistentFlags().Lookup(f.Name) != nil {
				t.Errorf("%s: --%s is of all commands, and in the help of shivactl alone", cmd.CommandPath(), f.Name)
			}
		})
		for line := range strings.Lines(out.String()) {
			if utf8.RuneCountInString(line) > helpColumns+1 && !strings.Contains(line, "  shivactl ") &&
				!strings.Contains(line, "completion") {
				t.Errorf("%s: a line is wider than %d columns: %s", cmd.CommandPath(), helpColumns, line)
			}
		}
		fmt.Fprintf(&page, "\n## %s\n\n```text\n%s\n```\n", cmd.CommandPath(), strings.TrimSpace(out.String()))
	}
	manualtest.Page(t, "../../server/manual/commands.md", page.String())
}
