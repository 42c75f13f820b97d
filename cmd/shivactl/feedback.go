package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/shiva"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) feedbackCommand() *cobra.Command {
	o := &feedbackOptions{outcome: map[string]any{}}
	cmd := &cobra.Command{
		Use: "feedback APP [FILE]", Short: "tell an application the outcome of a request",
		Long: `The application's policy learns from feedback. Name the request by its --id, or give its input again as
a FILE (as for infer); the server then asks the models again. Give exactly one of --label, --loss, --reward and
--losses. Feedback with an id counts once, however often you send it.

With --json: {"application", "learned", "rounds"}; learned is false if it was learned before
`,
		Example: `  shivactl infer digits-app seven.png --id frame-1 --user anna
  shivactl feedback digits-app --id frame-1 --user anna --label 7
  shivactl feedback digits-app seven.png --user anna --loss 0.2
`,
		ValidArgsFunction: c.completes(appNames, anyFile),
		RunE:              c.asks(func(c *cli, args []string) error { return c.feedback(o, args) }),
	}
	f := cmd.Flags()
	f.StringVar(&o.id, "id", "", "the request's --id, `ID`")
	f.StringVar(&o.user, "user", "", "the `USER` whose request it was")
	for _, v := range [][2]string{
		{"label", "the right answer as `JSON`: a value, or an object with a value for each output"},
		{"loss", "how bad the answer was, a `NUMBER` from 0 (perfect) to 1"},
		{"reward", "how good the answer was, a `NUMBER` from 0 to 1"},
		{"losses", "the loss of each model, a `JSON` object by NAME/VERSION"},
	} {
		f.Func(v[0], v[1], func(s string) error {
			o.outcome[v[0]] = asJSON(s)
			return nil
		})
	}
	return cmd
}

type feedbackOptions struct {
	id, user string
	outcome  map[string]any // label, loss, reward, losses
}

// asJSON returns s itself if it is JSON, and otherwise s as a JSON string.
func asJSON(s string) json.RawMessage {
	if json.Valid([]byte(s)) {
		return json.RawMessage(s)
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always marshals
	}
	return text
}

func (c *cli) feedback(o *feedbackOptions, args []string) error {
	switch {
	case len(args) == 0 || len(args) > 2:
		return usage("feedback", "expected an application and at most one file, got %s", plural.Of(len(args), "argument"))
	case len(args) == 1 && o.id == "":
		return usage("feedback", "which request? give its --id, or its input as a file")
	case len(o.outcome) != 1:
		return usage("feedback", "what was the outcome? give one of --label, --loss, --reward and --losses, got %d of them",
			len(o.outcome))
	}
	client, err := c.dial(c.addr)
	if err != nil {
		return explain(err, "--addr", c.addr)
	}
	defer client.Close()
	question := &shiva.Message{}
	metadata := o.outcome
	if len(args) == 2 {
		m, err := c.describe(client, args[0])
		if err != nil {
			return err
		}
		it, err := (&loader{stdin: c.stdin, model: m}).load(args[1])
		if err != nil {
			return err
		}
		if question, err = message(m, it, request{}); err != nil {
			return unfit("", "%s: %v", args[1], err)
		}
		if err := json.Unmarshal(question.Metadata, &metadata); err != nil {
			return err
		}
	}
	request{id: o.id, user: o.user}.put(metadata)
	question.Namespace = args[0] + "/update"
	if question.Metadata, err = json.Marshal(metadata); err != nil {
		return err
	}
	answer, err := client.Do(c.ctx, question)
	if err != nil {
		return explain(err, "--addr", c.addr)
	}
	defer answer.Release()
	if c.json {
		return c.printJSON(json.RawMessage(slices.Clone(answer.Metadata)))
	}
	var learned struct {
		Learned bool
		Rounds  uint64
	}
	if err := json.Unmarshal(answer.Metadata, &learned); err != nil {
		return &failure{"protocol", "unusable answer: " + err.Error(), "", exitRefused}
	}
	whose := ""
	if o.user != "" {
		whose = " of user " + strconv.Quote(o.user)
	}
	text := "%s has learned from %s%s\n"
	if !learned.Learned {
		text = "it was learned before; %s has learned from %s%s\n"
	}
	fmt.Fprintf(c.stdout, text, args[0], plural.Of(learned.Rounds, "feedback"), whose)
	return nil
}
