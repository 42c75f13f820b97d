package operate

import (
	"net/http"
	"slices"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/shiva/jsonscan"
)

func (s Sources) models(*http.Request) (any, error) {
	return admin.ModelList{Models: append([]admin.Model{}, s.Report.Models()...)}, nil
}

// versions returns the versions of a model; having none is an error.
func (s Sources) versions(name string) ([]admin.Model, error) {
	list := slices.DeleteFunc(slices.Clone(s.Report.Models()), func(m admin.Model) bool { return m.Name != name })
	if len(list) == 0 {
		return nil, noName("model", name, s.modelNames(), "/v1/models")
	}
	return list, nil
}

// modelNames lists the names of models, each once.
func (s Sources) modelNames() (names []string) {
	for _, m := range s.Report.Models() { // sorted by name
		names = append(names, m.Name)
	}
	return slices.Compact(names)
}

func (s Sources) model(r *http.Request) (any, error) {
	name := r.PathValue("name")
	versions, err := s.versions(name)
	out := admin.ModelVersions{Name: name, Versions: versions}
	if i := slices.IndexFunc(versions, func(m admin.Model) bool { return m.Default }); i >= 0 {
		out.DefaultVersion = versions[i].Version
	}
	return out, err
}

// setModel changes settings of a model, and answers with the model.
func (s Sources) setModel(r *http.Request, sent []byte) (any, error) {
	var settings map[string]*string
	if err := jsonscan.Unmarshal(sent, &settings); err != nil || len(settings) == 0 {
		return nil, refuse(http.StatusBadRequest, `expected a JSON object of settings as strings, such as {"objective": "20ms"}; null restores the file's value`)
	}
	return s.set(r, settings)
}

// setDefaultVersion sets the version that the bare name of a model means.
func (s Sources) setDefaultVersion(r *http.Request, sent []byte) (any, error) {
	var body map[string]string
	err := jsonscan.Unmarshal(sent, &body)
	version, ok := body["version"]
	if err != nil || len(body) != 1 || !ok {
		return nil, refuse(http.StatusBadRequest, `expected {"version": "2"}, or {"version": ""} for the newest that is ready`)
	}
	return s.set(r, map[string]*string{"default_version": &version})
}

func (s Sources) set(r *http.Request, settings map[string]*string) (any, error) {
	name := r.PathValue("name")
	_, unknown := s.versions(name)
	// Stored settings can be reverted even if the model was removed.
	for _, value := range settings {
		if unknown != nil && value != nil {
			return nil, unknown
		}
	}
	before, after, err := s.Settings.Set(r.Context(), name, settings)
	if err != nil {
		return nil, err
	}
	s.audit(r, act{action: "change", what: "model", name: name, before: before, after: after})
	if unknown != nil {
		return admin.ModelVersions{Name: name, Versions: []admin.Model{}}, nil
	}
	return s.model(r)
}

func (s Sources) explain(r *http.Request) (any, error) {
	name := r.PathValue("name")
	all := s.Report.Explain(name)
	if len(all) == 0 {
		return nil, noName("model, application or pipeline", name, s.Report.Names(), "/v1/status")
	}
	return admin.Explanations{Versions: all}, nil
}

func (s Sources) version(r *http.Request) (any, error) {
	name, version := r.PathValue("name"), r.PathValue("version")
	for _, m := range s.Report.Models() {
		if m.Name == name && m.Version == version {
			return m, nil
		}
	}
	return nil, refuse(http.StatusNotFound, "no version %q of a model %q; /v1/models lists them", version, name)
}
