package main

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) containersCommand() *cobra.Command {
	containers := &cobra.Command{
		Use: "containers", Short: "list containers; start, stop or restart the server's own",
		Long: `Lists first each [[container]] of the server's file, then all connected containers.

containers start NAME starts the processes of a [[container]], and waits until they have registered. It also brings
back a retired version, which then runs until you stop it. containers stop NAME stops the processes after they have
answered their requests, and says if one had to be killed. containers restart NAME replaces the processes one after
the other while they serve: an old process ends when a new one has registered. If the new one fails, the old one
stays. Each command waits until this is done, for ten minutes at most (--timeout). The configuration file does not
change: when the server starts again, all containers run again.

With --json: {"containers": [{"name", "model", "address", "state", "reason", "processes": [...]}], "sessions": [...]}, and of
start, stop and restart {"name", ...}
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		RunE: c.asks(func(c *cli, _ []string) error { return c.listContainers() }),
	}
	verb := func(what, short string) *cobra.Command {
		return c.patient(&cobra.Command{
			Use: what + " NAME", Short: short,
			Args: oneArgument("the name of a container"), ValidArgsFunction: c.completes(containerNames),
			RunE: c.asks(func(c *cli, args []string) error { return c.operate(what, args[0]) }),
		}, loading)
	}
	return with(c.watched(containers),
		verb("start", "start a container and wait until it has registered"),
		verb("restart", "replace its processes one after the other, under load"),
		verb("stop", "stop a container and wait for the end of its processes"))
}

func (c *cli) listContainers() error {
	return fetch(c, "/v1/containers", func(list admin.Containers) error {
		if err := c.printContainers(list.Containers); err != nil {
			return err
		}
		fmt.Fprintln(c.stdout)
		return c.printSessions(list.Sessions)
	})
}

// loading is the time for which the admin door waits for a model to load.
const loading = 10 * time.Minute

func (c *cli) operate(what, name string) error {
	c.doing = what + " " + name
	return order(c, http.MethodPost, apiPath("/v1/containers/%s/"+what, name), []byte{}, func(k admin.Container) error {
		return c.printContainers([]admin.Container{k})
	})
}

func (c *cli) printContainers(list []admin.Container) error {
	if len(list) == 0 {
		fmt.Fprintln(c.stdout, "the server's file has no containers")
		return nil
	}
	g := newGrid("NAME\tMODEL\tSTATE\tPROCESSES\tWHY", "")
	for _, k := range list {
		running := 0
		for _, p := range k.Processes {
			if p.PID != 0 {
				running++
			}
		}
		processes, why := cmp.Or(k.Address, fmt.Sprint(running)), k.Reason
		if s := k.Scaling; s != nil {
			processes = fmt.Sprintf("%d of %d to %d", running, s.Min, s.Max)
			why = cmp.Or(why, s.Why)
		}
		g.add("%s\t%s\t%s\t%s\t%s", k.Name, k.Model, k.State, processes, cmp.Or(why, "-"))
	}
	return g.write(c.stdout, c.width())
}
