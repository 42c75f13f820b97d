package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
)

func (c *cli) policiesCommand() *cobra.Command {
	policies := &cobra.Command{
		Use: "policies [NAME]", Short: "list the policies, and show or reset what one has learned",
		Long: `Prints a line for each parameter of each policy, with its default.

policies learned APP shows what the policy of an application has learned for each user: the mean loss of each model,
from how many feedbacks, and the model's share in the answers. An empty user stands for requests without a user.
policies forget APP deletes all of this.

With --json: {"policies": [{"name", "parameters": [{"name", "wants", "default"}]}]}; of learned and forget {"application",
"policy", "params", "users": [{"user", "rounds", "models": [{"model", "share", "loss", "count"}]}], "more"}
`,
		Args: atMostOne("name"), ValidArgsFunction: c.completes(policyNames),
		RunE: c.asks((*cli).policies),
	}
	o := &learnedOptions{}
	learned := &cobra.Command{
		Use: "learned APP", Short: "show what the policy of an application has learned",
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.learned(o, args[0]) }),
	}
	f := learned.Flags()
	f.Func("user", "show only this `USER`", func(s string) error { o.user = &s; return nil })
	f.IntVar(&o.limit, "limit", 1000, "show at most `N` users")
	forget := &cobra.Command{
		Use: "forget APP", Short: "reset the policy of an application",
		Args: oneArgument(anApplication), ValidArgsFunction: c.completes(appNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.forget(args[0]) }),
	}
	return with(policies, c.watched(learned), c.deleting(forget, "what the policy of application %s has learned"))
}

func (c *cli) forget(name string) error {
	return order(c, http.MethodDelete, apiPath("/v1/apps/%s/policy", name), nil, c.printLearned)
}

type learnedOptions struct {
	user  *string // nil: every user
	limit int
}

func (c *cli) policies(args []string) error {
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
			return &failure{"usage",
				fmt.Sprintf("there is no policy %q; there are %s", args[0], strings.Join(names, ", ")), hint, exitUsage}
		}
	}
	if c.json {
		return c.printJSON(list)
	}
	g := newGrid("POLICY\tPARAMETER\tDEFAULT\tTAKES", "")
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
			g.add("%s\t%s\t%s\t%s", name, one.Name, def, one.Wants)
			name = ""
		}
	}
	return g.write(c.stdout, c.width())
}

func (c *cli) learned(o *learnedOptions, name string) error {
	query := url.Values{"limit": {strconv.Itoa(o.limit)}}
	if o.user != nil {
		query.Set("user", *o.user)
	}
	return fetch(c, apiPath("/v1/apps/%s/policy", name)+"?"+query.Encode(), c.printLearned)
}

func (c *cli) printLearned(l admin.Learned) error {
	if len(l.Users) == 0 {
		fmt.Fprintf(c.stdout, "%s of %s has learned nothing\n", l.Policy, l.Application)
		return nil
	}
	g := newGrid("USER\tFEEDBACKS\tMODEL\tSHARE\tMEAN LOSS\tOF", "OF\tFEEDBACKS")
	for _, u := range l.Users {
		user, rounds := strconv.Quote(u.User), fmt.Sprint(u.Rounds)
		for _, m := range u.Models {
			g.add("%s\t%s\t%s\t%.3f\t%.3f\t%.4g", user, rounds, m.Model, m.Share, m.Loss, m.Count)
			user, rounds = "", ""
		}
	}
	if err := g.write(c.stdout, c.width()); err != nil {
		return err
	}
	if l.More {
		fmt.Fprintln(c.stdout, "and more; --limit shows them")
	}
	return nil
}
