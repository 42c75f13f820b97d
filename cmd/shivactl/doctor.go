package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

// doctorCommand examines this machine: it asks no server.
func (c *cli) doctorCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use: "doctor", Short: "find out why a server on this machine does not serve",
		Long: `Checks what a server needs to start on this machine: the configuration, free ports, limits of
descriptors, memory and processors, the clock, certificates, the state's file or Redis, containers, model files with
the Python and packages that read them, and GPUs. For each fault it prints the line that mends it. The server may be
running: ports that it uses itself are no fault.

Run it as the server's user, and in the same Docker container if the server runs in one, since limits and permissions
are those of the process:
  sudo -u shivad shivactl doctor

It uses the shivad beside shivactl, or the one in $PATH.

The exit code is 1 if anything is wrong.

With --json: {"config", "wrong", "findings": [{"check", "verdict", "text", "remedy"}]}, where the verdict is ok, note or wrong
`,
		Example: `  shivactl doctor --config shivad.toml
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.doctor(file) }),
	}
	cmd.Flags().StringVar(&file, "config", "", "the server's configuration `FILE` (default "+admin.DefaultFile+", or none)")
	return c.patient(cmd, loading)
}

// doctor has the server's program examine the machine, as that is what would start. Checks need
// most of the server: in shivactl they would be a third of the program.
func (c *cli) doctor(file string) error {
	program, err := serverProgram()
	if err != nil {
		return err
	}
	args := []string{"--doctor"}
	if file != "" {
		args = append(args, "--config", file)
	}
	var said strings.Builder
	examine := exec.CommandContext(c.ctx, program, args...)
	examine.Stderr = &said
	examine.Cancel = func() error { return examine.Process.Signal(os.Interrupt) }
	examine.WaitDelay = time.Second
	stop := c.waiting("examining this machine")
	out, err := examine.Output()
	stop()
	var found admin.Diagnosis
	if json.Unmarshal(out, &found) != nil {
		if c.ctx.Err() != nil {
			return explain(c.ctx.Err(), "--config", file)
		}
		return unfit("is it of the same version as shivactl? "+program+" --version says", "%s --doctor: %v: %s",
			program, err, strings.TrimSpace(said.String()))
	}
	if c.json {
		if err := c.printJSON(found); err != nil {
			return err
		}
	} else {
		c.showReport(found)
	}
	if found.Wrong > 0 {
		return &failure{code: exitRefused} // the report says all
	}
	return nil
}

// serverProgram finds shivad: beside shivactl, where packages put both, or in $PATH.
func serverProgram() (string, error) {
	if self, err := os.Executable(); err == nil {
		if found, err := exec.LookPath(filepath.Join(filepath.Dir(self), "shivad")); err == nil {
			return found, nil
		}
	}
	found, err := exec.LookPath("shivad")
	if err != nil {
		return "", unfit("run it on the machine of the server", "there is no shivad beside shivactl or in $PATH")
	}
	return found, nil
}

// showReport has what is wrong in capitals, and what mends it below.
func (c *cli) showReport(r admin.Diagnosis) {
	const indent = "                      " // of what the columns below leave
	for _, f := range r.Findings {
		verdict := string(f.Verdict)
		if f.Verdict == admin.Wrong {
			verdict = strings.ToUpper(verdict)
		}
		fmt.Fprintf(c.stdout, "%-6s %-14s %s\n", verdict, f.Check, strings.ReplaceAll(f.Text, "\n", "\n"+indent))
		if f.Remedy != "" {
			fmt.Fprintf(c.stdout, "%s-> %s\n", indent, f.Remedy)
		}
	}
	if r.Wrong == 0 {
		fmt.Fprintln(c.stdout, "nothing is wrong")
		return
	}
	fmt.Fprintf(c.stdout, "%d wrong\n", r.Wrong)
}
