package manage

import (
	"slices"
	"strings"
)

// awaited returns the models that must be served for the server to be ready: those of every
// [[container]] and the required ones, except those whose processes an operator or a client has
// stopped. Models whose containers connect by themselves count only if they are required: the
// server cannot tell whether one that is missing will come back.
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
