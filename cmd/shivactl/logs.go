package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) logsCommand() *cobra.Command {
	o := &logOptions{}
	cmd := &cobra.Command{
		Use: "logs", Short: "show the last lines of the server's log, or follow it",
		Long: `The oldest lines come first. The server keeps the last thousand lines since its start, of level info or
above, even if its own log leaves them out. With --follow the command shows new lines until Ctrl-C, also after the
server has restarted. Times are UTC.

With --json: {"entries": [{"id", "at", "level", "message", "attributes": [{"key", "value"}]}]}; with --follow one such document
for each time that there were any
`,
		Args: noArguments, ValidArgsFunction: cobra.NoFileCompletions,
		PreRun: func(*cobra.Command, []string) {
			if o.follow {
				c.every, c.follows = followEvery, true
			}
		},
		RunE: c.asks(func(c *cli, _ []string) error { return c.showLogs(o) }),
	}
	f := cmd.Flags()
	f.IntVar(&o.limit, "limit", 1000, "show the last `N` lines")
	f.StringVar(&o.level, "level", "info", "show lines of this `LEVEL` or above: info, warn or error")
	f.BoolVar(&o.follow, "follow", false, "show new lines as they come, until Ctrl-C")
	c.completeFlag(cmd, "level", oneOf("info", "warn", "error"))
	return cmd
}

type logOptions struct {
	limit  int
	level  string
	follow bool

	again  bool  // something has been shown
	newest int64 // the id of the last entry shown
}

// followEvery is the interval at which the server is asked for more.
const followEvery = time.Second

// showLogs shows the entries that are newer than the last one shown.
func (c *cli) showLogs(o *logOptions) error {
	query := url.Values{"level": {o.level}, "after": {strconv.FormatInt(o.newest, 10)}}
	if !o.again { // later calls show all new entries
		query.Set("limit", strconv.Itoa(o.limit))
	}
	var l admin.Logs
	if err := c.get("/v1/logs?"+query.Encode(), &l); err != nil {
		return err
	}
	first := !o.again
	o.again = true
	if n := len(l.Entries); n > 0 {
		o.newest = l.Entries[n-1].ID
	}
	if c.json {
		if len(l.Entries) == 0 && !first {
			return nil
		}
		return c.printJSON(l)
	}
	for _, e := range l.Entries {
		var line strings.Builder
		fmt.Fprintf(&line, "%s %-5s %s", e.At.UTC().Format("2006-01-02 15:04:05.000"), e.Level, e.Message)
		for _, a := range e.Attributes {
			value := a.Value
			if value == "" || strings.ContainsAny(value, ` ="`) {
				value = strconv.Quote(value)
			}
			fmt.Fprintf(&line, "  %s=%s", a.Key, value)
		}
		fmt.Fprintln(c.stdout, line.String())
	}
	return nil
}
