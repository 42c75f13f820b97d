package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/backoff"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) latestCommand() *cobra.Command {
	o := &latestOptions{}
	cmd := &cobra.Command{
		Use: "latest NAME [STREAM]", Short: "show the newest answer of a stream, such as a camera",
		Long: `NAME is the model or application that gets the stream's frames. You may omit STREAM if NAME has a
single stream. The server keeps answers only while somebody asks for them, so use --wait the first time. With latest =
true in [model.NAME] it always keeps them.

--follow shows each newer answer as it comes, until Ctrl-C.

With --json: a line as infer prints it, for each answer.
`,
		Example: `  shivactl latest cells camera-3 --wait
  shivactl latest cells --follow --json
`,
		ValidArgsFunction: c.completes(routeNames),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || len(args) > 2 || args[0] == "" {
				return usage("latest", "expected a model and a stream, got %s", plural.Of(len(args), "argument"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return c.latest(o, args) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.wait, "wait", false, "wait for the next answer, or with --max-age until one is new enough")
	f.BoolVar(&o.follow, "follow", false, "show each newer answer as it comes")
	f.Var(value[time.Duration]{&o.maxAge, period, ""}, "max-age", "refuse an answer that is older than this `TIME`")
	f.StringVar(&o.user, "user", "", "the `USER` of the stream's frames")
	topFlag(cmd, &o.top)
	return cmd
}

type latestOptions struct {
	wait, follow bool
	maxAge       time.Duration
	user         string
	top          int
}

// latest shows the newest answer of a stream, or each of them.
func (c *cli) latest(o *latestOptions, args []string) error {
	client, err := c.dial(c.addr, shiva.WithDeadlineMetadata())
	if err != nil {
		return explain(err, "--addr", c.addr)
	}
	defer client.Close()
	m, err := c.describe(client, args[0])
	if err != nil {
		return err
	}
	if !c.json {
		c.nameClasses(client, &m)
	}
	question := map[string]any{}
	if len(args) > 1 {
		question["stream"] = args[1]
	}
	if o.user != "" {
		question["user"] = o.user
	}
	if o.maxAge > 0 {
		question["max_age_ms"] = float64(o.maxAge) / float64(time.Millisecond)
	}
	if o.wait || o.follow {
		question["wait"] = true
	}
	for {
		r, seq, err := c.askLatest(client, m, args[0], question)
		switch remote, told := errors.AsType[*shiva.RemoteError](err); {
		case err == nil:
			question["after"] = seq
		case o.follow && told && (remote.Type == shiva.DeadlineExceeded || remote.Type == shiva.NotFound):
			// The camera may have begun again to number its frames, with the server restarted.
			delete(question, "after")
			// For a name that is gone the server answers at once, each time.
			if !backoff.Wait(leastRefresh, c.ctx.Done()) {
				return nil
			}
			continue
		case o.follow && c.ctx.Err() != nil:
			return nil
		default:
			f := explain(err, "--addr", c.addr)
			if told && (remote.Type == shiva.NotFound || remote.Type == shiva.Unavailable) {
				f.Hint = "shivactl streams " + args[0] + " lists the streams; --wait waits for an answer"
			}
			return f
		}
		if c.json {
			err = c.printResultsJSON(m, []result{r})
		} else {
			err = c.printResults(m, []result{r}, &inferOptions{top: o.top, subject: "FRAME"})
		}
		if err != nil || !o.follow {
			return err
		}
	}
}

// askLatest asks for the newest answer, and returns its number.
func (c *cli) askLatest(client *shiva.Client, m model, name string,
	question map[string]any) (r result, seq int64, err error) {
	metadata, err := json.Marshal(question)
	if err != nil {
		return r, 0, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	start := time.Now()
	answer, err := client.Do(ctx, &shiva.Message{Namespace: "v2/models/" + name + "/latest", Metadata: metadata})
	if err != nil {
		return r, 0, err
	}
	defer answer.Release()
	var head struct {
		Seq int64   `json:"seq"`
		Age float64 `json:"age_ms"`
	}
	if err := json.Unmarshal(answer.Metadata, &head); err != nil {
		return r, 0, err
	}
	r = result{rows: 1, took: time.Since(start), metadata: slices.Clone(answer.Metadata)}
	r.name = fmt.Sprintf("frame %d, %.0f ms old", head.Seq, head.Age)
	r.outputs, err = outputs(m, answer)
	return r, head.Seq, err
}
