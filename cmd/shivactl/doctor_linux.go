package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/doctor"
)

// doctorCommand examines this machine: it asks no server.
func (c *cli) doctorCommand() *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use: "doctor", Short: "find what keeps a server here from serving",
		Long: `Examines this machine as a start of the server would: the configuration, whether its ports are free, the limits of descriptors, memory
and processors, the clock, certificates, the state's file or Redis, containers, model files with the Python and packages that read them, and
GPUs. Each fault has the line that mends it. A server may run meanwhile: its own ports are no fault.

Run it as the user, and in the container, of the server: limits and permissions are those of this process, such as by
  sudo -u shivad shivactl doctor

The exit status is 1 if anything is wrong.

With --json: {"config", "wrong", "findings": [{"check", "verdict", "text", "remedy"}]}, where the verdict is ok, note or wrong
`,
		Example: `  shivactl doctor --config shivad.toml
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.doctor(file) }),
	}
	cmd.Flags().StringVar(&file, "config", "", "the `FILE` that the server reads (default "+doctor.DefaultFile+", or none)")
	return c.patient(cmd, loading)
}

func (c *cli) doctor(file string) error {
	r := doctor.Examine(c.ctx, file)
	if c.json {
		if err := c.printJSON(r); err != nil {
			return err
		}
	} else {
		c.showReport(r)
	}
	if r.Wrong > 0 {
		return &failure{code: exitRefused} // the report says all
	}
	return nil
}

// showReport has what is wrong in capitals, and what mends it below.
func (c *cli) showReport(r doctor.Report) {
	const indent = "                      " // of what the columns below leave
	for _, f := range r.Findings {
		verdict := string(f.Verdict)
		if f.Verdict == doctor.Wrong {
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
