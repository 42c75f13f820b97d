package operate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// explainAbsent says where the configuration names a model that no container has registered, and
// what is known of those that should; nil if it does not name the model.
func (r *Report) explainAbsent(model string) (out []string) {
	file := r.Settings.File()
	var in []string
	if slices.Contains(r.Files.Models(), model) {
		in = append(in, "a file of a [[model_folder]]")
	} else {
		for _, container := range r.Processes.Containers(model) {
			in = append(in, "[[container]] "+strconv.Quote(container))
		}
	}
	for _, c := range file.Supervised {
		if c.Address != "" && c.Model == model {
			in = append(in, "[[container]] "+strconv.Quote(c.Name))
		}
	}
	if slices.ContainsFunc(file.Server.RequiredModels, func(id string) bool {
		name, _, _ := strings.Cut(id, "/")
		return name == model
	}) {
		in = append(in, "server.required_models")
	}
	if _, found := file.Models[model]; found {
		in = append(in, "[model."+model+"]")
	}
	if in == nil {
		return nil
	}
	out = append(out, fmt.Sprintf("No container of %s has registered%s: every request is refused. The configuration has it in %s.",
		model, r.Processes.WhyMissing([]string{model}), strings.Join(in, ", ")))
	if fault := r.Files.Fault(model); fault != "" {
		out = append(out, "Of its file: "+strings.TrimSuffix(fault, ".")+".")
	}
	return append(out, fmt.Sprintf("Start a container of %s, or see in \"shivactl status\" and \"shivactl logs\" why none registers.", model))
}
