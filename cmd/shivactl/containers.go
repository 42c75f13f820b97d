package main

import (
	"cmp"
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/shivad/shivad/server/admin"
)

var containersCommand = command{
	name: "containers", short: "list the containers; start, stop and restart those of the server's file",
	help: `First the [[container]] of the server's file, then all that are connected.

containers start NAME starts the processes of one and waits until they have registered; it also brings back a version that was
retired, which then stays until it is stopped. containers stop NAME stops them, after they have answered what they have, and says
if one had to be killed. containers restart NAME replaces them one after the other while they serve: each is told to end when a new
one has registered, so there is one more meanwhile; if the new one fails, the old one goes on. All wait for it to happen, ten
minutes at most (--timeout). The file is not changed: with the server's next start all run again.

With --json: {"containers": [{"name", "model", "address", "state", "reason", "processes": [...]}], "sessions": [...]}, and of
start, stop and restart {"name", ...}
`,
	takes: []kind{nothing}, watches: true,
	run: func(c *cli, _ any, args []string) error {
		if len(args) > 0 {
			return usage("containers", "unexpected argument %q", args[0])
		}
		var list admin.Containers
		if err := c.get("/v1/containers", &list); err != nil {
			return err
		}
		if c.json {
			return c.printJSON(list)
		}
		if err := c.printContainers(list.Containers); err != nil {
			return err
		}
		fmt.Fprintln(c.stdout)
		return c.printSessions(list.Sessions)
	},
	verbs: []command{
		{name: "containers start", args: "NAME", short: "start a container and wait until it has registered", help: "More about it: shivactl help containers\n",
			takes: []kind{aContainer, nothing}, timeout: loading,
			run: func(c *cli, _ any, args []string) error { return c.operate("start", args) }},
		{name: "containers restart", args: "NAME", short: "replace a container's processes one after the other, under load", help: "More about it: shivactl help containers\n",
			takes: []kind{aContainer, nothing}, timeout: loading,
			run: func(c *cli, _ any, args []string) error { return c.operate("restart", args) }},
		{name: "containers stop", args: "NAME", short: "stop a container and wait for the end of its processes", help: "More about it: shivactl help containers\n",
			takes: []kind{aContainer, nothing}, timeout: loading,
			run: func(c *cli, _ any, args []string) error { return c.operate("stop", args) }},
	},
}

// loading is the time for which the admin door waits for a model to load.
const loading = 10 * time.Minute

func (c *cli) operate(what string, args []string) error {
	name, err := oneArgument("containers", "the name of a container", args)
	if err != nil {
		return err
	}
	var k admin.Container
	if err := c.call(http.MethodPost, apiPath("/v1/containers/%s/"+what, name), []byte{}, &k); err != nil {
		return err
	}
	if c.json {
		return c.printJSON(k)
	}
	return c.printContainers([]admin.Container{k})
}

func (c *cli) printContainers(list []admin.Container) error {
	if len(list) == 0 {
		fmt.Fprintln(c.stdout, "the server's file has no containers")
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tMODEL\tSTATE\tPROCESSES\tWHY")
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
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.Name, k.Model, k.State, processes, cmp.Or(why, "-"))
	}
	return w.Flush()
}
