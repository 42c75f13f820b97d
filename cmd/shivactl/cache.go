package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/plural"
)

func (c *cli) cacheCommand() *cobra.Command {
	cache := &cobra.Command{
		Use: "cache show|clear", Short: "show the hit ratios of prediction caches, or clear one",
		Long: `cache show prints a line for each version of each model that has a cache, or of one model. HIT RATIO is
the share of requests that were not executed: they were answered from the cache, or waited for the answer to an equal
request (SHARED). NOT KEPT counts answers that were too large for the cache, or that found no payload memory.

cache clear MODEL drops the cached answers of all versions of a model. Use it when you have changed a model under the
same version.

To give a model a cache: shivactl models set digits cache=64MiB cache_ttl=10m

With --json: show prints {"caches": [{"name", "limit_bytes", "entries", "bytes", "versions": [{"version", "limit_bytes",
"entries", "bytes", "hits", "shared", "misses", "evicted", "expired", "not_kept"}]}]}, clear {"name", "entries", "bytes"}.
`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("cache", "show or clear?")
			}
			return usage("cache", "expected show or clear, got %q", args[0])
		},
	}
	show := &cobra.Command{
		Use: "show [MODEL]", Short: "show the caches of all models, or of one",
		Args: atMostOne("model"), ValidArgsFunction: c.completes(modelNames),
		RunE: c.asks((*cli).showCaches),
	}
	drop := &cobra.Command{
		Use: "clear MODEL", Short: "drop the cached answers of a model",
		Args: oneArgument("a model"), ValidArgsFunction: c.completes(modelNames),
		RunE: c.asks(func(c *cli, args []string) error { return c.clearCache(args[0]) }),
	}
	return with(cache, c.watched(show), c.deleting(drop, "the cached answers of %s"))
}

// cacheList is the output of cache show --json.
type cacheList struct {
	Caches []admin.ModelCache `json:"caches"`
}

// showCaches shows the cache of one model, or of all that have one.
func (c *cli) showCaches(models []string) error {
	out := cacheList{Caches: []admin.ModelCache{}}
	if len(models) == 0 {
		var list admin.ModelList
		if err := c.get("/v1/models", &list); err != nil {
			return err
		}
		for _, m := range list.Models { // by name
			if m.Cache != nil && (len(models) == 0 || models[len(models)-1] != m.Name) {
				models = append(models, m.Name)
			}
		}
	}
	for _, name := range models {
		var m admin.ModelCache
		if err := c.get(apiPath("/v1/models/%s/cache", name), &m); err != nil {
			return err
		}
		out.Caches = append(out.Caches, m)
	}
	if c.json {
		return c.printJSON(out)
	}
	if len(out.Caches) == 0 {
		fmt.Fprintln(c.stdout, "no model has a cache; shivactl models set MODEL cache=64MiB gives it one")
		return nil
	}
	g := newGrid("MODEL\tVERSION\tKEPT\tIN USE\tLIMIT\tHIT RATIO\tHITS\tSHARED\tMISSES\tEVICTED\tEXPIRED\tNOT KEPT",
		"NOT KEPT\tEXPIRED\tSHARED\tEVICTED\tMISSES\tHITS")
	for _, m := range out.Caches {
		for _, v := range m.Versions {
			g.add("%s\t%s\t%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d", m.Name, v.Version, v.Entries, size(v.Bytes),
				size(m.Limit), hitRatio(v.Cache), v.Hits, v.Shared, v.Misses, v.Evicted, v.Expired, v.NotKept)
		}
	}
	return g.write(c.stdout, c.width())
}

func (c *cli) clearCache(name string) error {
	return order(c, http.MethodDelete, apiPath("/v1/models/%s/cache", name), nil, func(cleared admin.Cleared) error {
		answers := plural.Of(cleared.Entries, "answer")
		fmt.Fprintf(c.stdout, "dropped %s of %s, %s\n", answers, name, size(cleared.Bytes))
		return nil
	})
}

// hitRatio formats the share of requests that were not executed.
func hitRatio(c admin.Cache) string {
	all := c.Hits + c.Shared + c.Misses
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(c.Hits+c.Shared)/float64(all))
}
