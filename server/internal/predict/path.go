package predict

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva"
)

// A Path describes the server or models, over both HTTP and Shiva.
type Path struct {
	Steps []string // "{model}" and "{version}" stand for names
	Open  bool     // open to all callers, without an identity: health
	Tell  func(s *Service, model, version string) (any, error)
}

// Paths are all paths of the protocol that take no body, except that of the server's metadata,
// whose answer depends on the door.
var Paths = func() (all []Path) {
	add := func(path string, tell func(s *Service, model, version string) (any, error)) {
		all = append(all, Path{strings.Split(path, "/"), strings.HasPrefix(path, "v2/health/"), tell})
	}
	add("v2/health/live", func(*Service, string, string) (any, error) { return map[string]bool{"live": true}, nil })
	add("v2/health/ready", func(s *Service, _, _ string) (any, error) { return s.Ready(), nil })
	add("v2/models", func(s *Service, _, _ string) (any, error) { return s.List(), nil })
	add("v2/models/stats", func(s *Service, _, _ string) (any, error) { return s.Statistics("", "") })
	for _, of := range []string{"v2/models/{model}", "v2/models/{model}/versions/{version}"} {
		add(of, func(s *Service, model, version string) (any, error) { return s.Model(model, version) })
		add(of+"/ready", func(s *Service, model, version string) (any, error) { return s.ModelReady(model, version) })
		add(of+"/config", func(s *Service, model, version string) (any, error) { return s.ModelConfig(model, version) })
		add(of+"/stats", func(s *Service, model, version string) (any, error) { return s.Statistics(model, version) })
	}
	return all
}()

// Match reports whether the steps of a path match a pattern, and returns the names in it. The name
// of a region is returned as model.
func Match(pattern, steps []string) (model, version string, ok bool) {
	if len(pattern) != len(steps) {
		return "", "", false
	}
	for i, want := range pattern {
		switch {
		case steps[i] == "":
			return "", "", false
		case want == "{model}" || want == "{region}":
			model = steps[i]
		case want == "{version}":
			version = steps[i]
		case want != steps[i]:
			return "", "", false
		}
	}
	return model, version, true
}

// shivaExtensions are the extensions that Shiva has, in the terms of its metadata: the keys
// "parameters", "priority" and "timeout_ms", and the paths of models' configuration and statistics.
// From model_repository it has only the index.
var shivaExtensions = []string{"model_configuration", "parameters", "schedule_policy", "statistics"}

// Describe answers a path requested over Shiva: one of Paths, "v2" (Shiva's own name for it is
// "!server"), or the index of the repository, from which onlyReady omits models that are not ready.
// The answer is the JSON object that HTTP gives; the index is its member "models", as in gRPC. ok
// is false for any other path.
func (s *Service) Describe(path string, onlyReady bool) (answer []byte, ok bool, err error) {
	var value any
	switch ok, err = true, s.view.Who().Enter(); path {
	case shiva.ServerNamespace, "v2", "v2/":
		value = ServerMetadata{"shivad", s.cfg.Version, s.extensions(shivaExtensions)}
	case "v2/repository/index":
		value = map[string][]IndexEntry{"models": s.Index(onlyReady)}
	default:
		steps, model, version := strings.Split(path, "/"), "", ""
		at := slices.IndexFunc(Paths, func(p Path) bool {
			model, version, ok = Match(p.Steps, steps)
			return ok
		})
		if ok && (err == nil || Paths[at].Open) {
			value, err = Paths[at].Tell(s, model, version)
		}
	}
	if !ok || err != nil {
		return nil, ok, err
	}
	answer, err = json.Marshal(value)
	return answer, true, err
}
