package manage

import (
	"slices"
	"strings"
)

// awaited are the models that should be served, for the server to be ready: those of every
// [[container]], and the required ones; but for those whose processes an operator or a client has
// stopped. Loading is starting them again. Models whose containers connect by themselves are not
// among them unless they are required: nobody could tell one that will not come back from one that
// will.
func (r *Report) awaited() []string {
	loaded, unloaded := r.Processes.Awaited()
	for _, c := range r.Settings.File().Supervised {
		if c.Address != "" {
			loaded = append(loaded, c.Model)
		}
	}
	for _, required := range r.Settings.File().Server.RequiredModels {
		model, _, _ := strings.Cut(required, "/")
		if !unloaded[model] || slices.Contains(loaded, model) {
			loaded = append(loaded, required)
		}
	}
	slices.Sort(loaded)
	return slices.Compact(loaded)
}
