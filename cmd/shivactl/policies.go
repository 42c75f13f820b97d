package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/shivad/shivad/server/admin"
)

var policiesCommand = command{
	name: "policies", args: "[NAME]", short: "list the policies of applications, show and forget what one has learned",
	help: `One line for each parameter of a policy, with its default.

policies learned APP shows what the policy of an application has learned, by user: the mean loss of each model, of how many
feedbacks, and what part it has in the answers. The user without a name is who asks without one. policies forget APP has it begin anew.

With --json: {"policies": [{"name", "parameters": [{"name", "wants", "default"}]}]}; of learned and forget {"application",
"policy", "params", "users": [{"user", "rounds", "models": [{"model", "share", "loss", "count"}]}], "more"}
`,
	takes: []kind{aPolicy, nothing},
	run:   func(c *cli, _ any, args []string) error { return c.policies(args) },
	verbs: []command{
		{name: "policies learned", args: "APP", short: "show what the policy of an application has learned", help: "More about it: shivactl help policies\n",
			takes: []kind{anApp, nothing}, watches: true,
			flags: func(f *flag.FlagSet) any {
				o := &learnedOptions{}
				f.Func("user", "only of this `USER`", func(s string) error { o.user = &s; return nil })
				f.IntVar(&o.limit, "limit", 1000, "of at most `N` users")
				return o
			},
			run: func(c *cli, opts any, args []string) error { return c.learned(opts.(*learnedOptions), args) }},
		{name: "policies forget", args: "APP", short: "have the policy of an application begin anew", help: "More about it: shivactl help policies\n",
			takes: []kind{anApp, nothing}, deletes: "what the policy of application %s has learned",
			run: func(c *cli, _ any, args []string) error {
				name, err := oneArgument("policies", "the name of an application", args)
				if err != nil {
					return err
				}
				var l admin.Learned
				if err := c.call(http.MethodDelete, apiPath("/v1/apps/%s/policy", name), nil, &l); err != nil {
					return err
				}
				return c.printLearned(l)
			}},
	},
}

type learnedOptions struct {
	user  *string // nil: every user
	limit int
}

func (c *cli) policies(args []string) error {
	if len(args) > 1 {
		return usage("policies", "expected one name, got %d", len(args))
	}
	var list admin.PolicyList
	if err := c.get("/v1/policies", &list); err != nil {
		return err
	}
	if len(args) == 1 {
		var names []string
		for _, p := range list.Policies {
			names = append(names, p.Name)
		}
		list.Policies = slices.DeleteFunc(list.Policies, func(p admin.Policy) bool { return p.Name != args[0] })
		if len(list.Policies) == 0 {
			hint := cmp.Or(didYouMean(args[0], names), "shivactl help policies")
			return &failure{"usage", fmt.Sprintf("there is no policy %q; there are %s", args[0], strings.Join(names, ", ")), hint, exitUsage}
		}
	}
	if c.json {
		return c.printJSON(list)
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "POLICY\tPARAMETER\tDEFAULT\tTAKES")
	for _, p := range list.Policies {
		name := p.Name
		for _, one := range p.Parameters {
			def := "-"
			if one.Default != nil {
				text, err := json.Marshal(one.Default)
				if err != nil {
					return err
				}
				def = string(text)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, one.Name, def, one.Wants)
			name = ""
		}
	}
	return w.Flush()
}

func (c *cli) learned(o *learnedOptions, args []string) error {
	name, err := oneArgument("policies", "the name of an application", args)
	if err != nil {
		return err
	}
	query := url.Values{"limit": {strconv.Itoa(o.limit)}}
	if o.user != nil {
		query.Set("user", *o.user)
	}
	var l admin.Learned
	if err := c.get(apiPath("/v1/apps/%s/policy", name)+"?"+query.Encode(), &l); err != nil {
		return err
	}
	return c.printLearned(l)
}

func (c *cli) printLearned(l admin.Learned) error {
	if c.json {
		return c.printJSON(l)
	}
	if len(l.Users) == 0 {
		fmt.Fprintf(c.stdout, "%s of %s has learned nothing\n", l.Policy, l.Application)
		return nil
	}
	w := tabwriter.NewWriter(c.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "USER\tFEEDBACKS\tMODEL\tSHARE\tMEAN LOSS\tOF")
	for _, u := range l.Users {
		user, rounds := strconv.Quote(u.User), fmt.Sprint(u.Rounds)
		for _, m := range u.Models {
			fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%.3f\t%.4g\n", user, rounds, m.Model, m.Share, m.Loss, m.Count)
			user, rounds = "", ""
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if l.More {
		fmt.Fprintln(c.stdout, "and more; --limit shows them")
	}
	return nil
}
