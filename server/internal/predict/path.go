package predict

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/shivad/shivad/shiva"
)

// A Path tells of the server or of models, over HTTP and over Shiva alike.
type Path struct {
	Steps []string // "{model}" and "{version}" stand for names
	Open  bool     // to whoever asks, without an identity: health
	Tell  func(s *Service, model, version string) (any, error)
}

// Paths are all of the protocol that take no body, but the one of the server's metadata, which
// tells of each door's own extensions.
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

// Match reports whether the steps of a path are those of a pattern, and the names in it. That of a
// region stands in the place of a model's.
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

// shivaExtensions are those that a client has over Shiva, in the words of its metadata: the
// keys "parameters", "priority" and "timeout_ms", and the paths of models' configuration and
// statistics. Of model_repository there is the index only.
var shivaExtensions = []string{"model_configuration", "parameters", "schedule_policy", "statistics"}

// Describe answers a path that is asked for over Shiva: one of Paths, "v2", which is "!server"
// in Shiva's own words, or the index of the repository, of which onlyReady leaves out what
// cannot be asked. The answer is the JSON object that HTTP gives; the index is its member
// "models", as in gRPC. ok is false when path is none of these.
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
