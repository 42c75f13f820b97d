package server

import (
	"slices"
	"strings"
)

// awaited are the models that should be served, for the server to be ready: those of every [[container]], and the required ones; but for
// those whose processes an operator or a client has stopped. Loading is starting them again. Models whose containers connect by themselves are not among
// them unless they are required: nobody could tell one that will not come back from one that will.
func (s *Server) awaited() []string {
	loaded, unloaded := []string{}, map[string]bool{}
	for _, p := range (repository{s}).all() {
		model, ok := p.awaited()
		if ok {
			loaded = append(loaded, model)
		} else {
			unloaded[model] = true
		}
	}
	for _, c := range s.base.Load().Supervised {
		if c.Address != "" {
			loaded = append(loaded, c.Model)
		}
	}
	for _, required := range s.base.Load().Server.RequiredModels {
		model, _, _ := strings.Cut(required, "/")
		if !unloaded[model] || slices.Contains(loaded, model) {
			loaded = append(loaded, required)
		}
	}
	slices.Sort(loaded)
	return slices.Compact(loaded)
}

// whyMissing says what is known of models that should be served and are not, for an end of a sentence; "" if nothing is.
func (s *Server) whyMissing(models []string) string {
	var why []string
	for _, p := range (repository{s}).all() {
		model, ok := p.awaited()
		if !ok || !slices.Contains(models, model) {
			continue
		}
		_, reason := p.state()
		if !p.named() {
			reason += ", and its [[container]] does not say which model it serves: set its model if it is another"
		}
		why = append(why, model+": "+reason)
	}
	if why == nil {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}
