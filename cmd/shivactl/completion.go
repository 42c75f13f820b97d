package main

import (
	"bytes"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// shells are those that shivactl makes scripts for, which ask it for candidates (complete.go).
var shells = []struct {
	name string
	// The name of the file that the shell finds the script by, in packages.
	file  string
	write func(root *cobra.Command, w io.Writer) error
}{
	{"bash", "shivactl.bash", func(root *cobra.Command, w io.Writer) error {
		return root.GenBashCompletionV2(w, true)
	}},
	{"zsh", "_shivactl", (*cobra.Command).GenZshCompletion},
	{"fish", "shivactl.fish", func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) }},
	{"powershell", "shivactl.ps1", (*cobra.Command).GenPowerShellCompletionWithDesc},
}

func (c *cli) completionCommand() *cobra.Command {
	var known []string
	for _, s := range shells {
		known = append(known, s.name)
	}
	return &cobra.Command{
		Use: "completion SHELL", Short: "print the completion script of a shell",
		Long: `The script completes commands, flags and profiles. It also asks the server (--admin) for the names of
models, applications, containers, policies and settings. SHELL is bash (with the package bash-completion), zsh, fish
or powershell. To have completion in every new shell, run once:`,
		Example: `  bash         echo 'source <(shivactl completion bash)' >> ~/.bashrc
  zsh          echo 'source <(shivactl completion zsh)' >> ~/.zshrc          after compinit
  fish         shivactl completion fish > ~/.config/fish/completions/shivactl.fish
  powershell   shivactl completion powershell >> $PROFILE

With --json: {"shell", "script"}`,
		ValidArgsFunction: c.completes(oneOf(known...)),
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.Index(known, strings.Join(args, " "))
			if i < 0 {
				return usage("completion", "expected one of %s, got %q", strings.Join(known, ", "), strings.Join(args, " "))
			}
			var script bytes.Buffer
			if err := shells[i].write(cmd.Root(), &script); err != nil {
				return err
			}
			if c.json {
				return c.printJSON(map[string]string{"shell": known[i], "script": script.String()})
			}
			_, err := c.stdout.Write(script.Bytes())
			return err
		},
	}
}
