package operate

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shivad/shivad/server/admin"
)

// awaited returns the models that must be served for the server to be ready: those of every
// [[container]] and the required ones, except models whose processes an operator or a client has
// stopped. Models whose containers connect by themselves count only if they are required: the
// server cannot tell whether a missing container will come back.
func (r *Report) awaited() []string {
	loaded, unloaded := r.Processes.Awaited()
	loaded = append(loaded, r.Files.Awaiting()...)
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

// Awaited says why a model of the configuration, "name" or "name/version", is not there yet: to
// clients it is Unavailable. "": the configuration does not have the model, and no process that is
// starting may serve it.
func (r *Report) Awaited(id string) (why string) {
	for _, one := range r.awaited() {
		if name, _, _ := strings.Cut(one, "/"); one == id || name == id {
			return fmt.Sprintf("no container has registered %s yet%s", one, r.Processes.WhyAbsent([]string{one}))
		}
	}
	if why := r.Processes.Starting(id); why != "" {
		return fmt.Sprintf("no container has registered %s yet (%s)", id, why)
	}
	return ""
}

// judge decides on readiness: a server is ready if it serves and each required model has a live
// replica. A required model is "name", which any of its versions satisfies, or "name/version".
func judge(state string, required []string, models []admin.Model) admin.Readiness {
	r := admin.Readiness{State: state}
	for _, want := range required {
		name, version, versioned := strings.Cut(want, "/")
		if !slices.ContainsFunc(models, func(m admin.Model) bool {
			return m.Ready && m.Name == name && (!versioned || m.Version == version)
		}) {
			r.Missing = append(r.Missing, want)
		}
	}
	switch {
	case state == admin.Draining:
		r.Reason = "the server is shutting down"
	case state != admin.Serving:
		r.Reason = "the server is not serving yet"
	case len(r.Missing) > 0:
		r.Reason = "no live replica of " + strings.Join(r.Missing, ", ")
	default:
		r.Ready = true
	}
	return r
}
