package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

func (s Sources) models(w http.ResponseWriter, r *http.Request) {
	models := s.Report.Models()
	if models == nil {
		models = []Model{}
	}
	s.write(w, http.StatusOK, ModelList{models})
}

// A ModelList is the answer to /v1/models.
type ModelList struct {
	Models []Model `json:"models"`
}

// ModelVersions is the answer to /v1/models/{name}.
type ModelVersions struct {
	Name           string  `json:"name"`
	DefaultVersion string  `json:"default_version"`
	Versions       []Model `json:"versions"`
}

func (s Sources) model(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	out := ModelVersions{Name: name}
	for _, m := range s.Report.Models() {
		if m.Name == name {
			out.Versions = append(out.Versions, m)
			if m.Default {
				out.DefaultVersion = m.Version
			}
		}
	}
	if out.Versions == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	s.write(w, http.StatusOK, out)
}

// setModel changes settings of a model, and shows it.
func (s Sources) setModel(w http.ResponseWriter, r *http.Request) {
	sent, err := body(w, r, maxBody)
	if err != nil {
		s.answer(w, 0, nil, err)
		return
	}
	var settings map[string]*string
	if err := json.Unmarshal(sent, &settings); err != nil || len(settings) == 0 {
		fail(w, http.StatusBadRequest, `expected a JSON object of settings as texts, such as {"objective": "20ms"}; null goes back to what the file says`)
		return
	}
	s.set(w, r, settings)
}

// setDefaultVersion says what the bare name of a model means.
func (s Sources) setDefaultVersion(w http.ResponseWriter, r *http.Request) {
	sent, err := body(w, r, maxBody)
	if err != nil {
		s.answer(w, 0, nil, err)
		return
	}
	var version map[string]string
	if err := json.Unmarshal(sent, &version); err != nil || len(version) != 1 || !has(version, "version") {
		fail(w, http.StatusBadRequest, `expected {"version": "2"}, or {"version": ""} for the newest that is ready`)
		return
	}
	v := version["version"]
	s.set(w, r, map[string]*string{"default_version": &v})
}

func has[V any](m map[string]V, key string) bool { _, ok := m[key]; return ok }

func (s Sources) set(w http.ResponseWriter, r *http.Request, settings map[string]*string) {
	name := r.PathValue("name")
	known := slices.ContainsFunc(s.Report.Models(), func(m Model) bool { return m.Name == name })
	// Of a model that is not there, settings that were kept can be taken back.
	if !known && slices.ContainsFunc(slices.Collect(maps.Values(settings)), func(v *string) bool { return v != nil }) {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	before, after, err := s.Settings.Set(r.Context(), name, settings)
	if err != nil {
		s.answer(w, 0, nil, err)
		return
	}
	s.audit(r, "model", name, before, after)
	if !known {
		s.write(w, http.StatusOK, ModelVersions{Name: name, Versions: []Model{}})
		return
	}
	s.model(w, r)
}

// Explanations is the answer to /v1/models/{name}/explain.
type Explanations struct {
	Versions []Explanation `json:"versions"`
}

// An Explanation says in sentences what a version of a model does, why its batches have the
// size they have, what limits it, and what to change.
type Explanation struct {
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Sentences []string `json:"sentences"`
}

func (s Sources) explain(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	all := s.Report.Explain(name)
	if len(all) == 0 {
		fail(w, http.StatusNotFound, fmt.Sprintf("no model %q; /v1/models lists them", name))
		return
	}
	s.write(w, http.StatusOK, Explanations{all})
}

func (s Sources) version(w http.ResponseWriter, r *http.Request) {
	name, version := r.PathValue("name"), r.PathValue("version")
	models := s.Report.Models()
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name && m.Version == version })
	if i < 0 {
		fail(w, http.StatusNotFound, fmt.Sprintf("no version %q of a model %q; /v1/models lists them", version, name))
		return
	}
	s.write(w, http.StatusOK, models[i])
}
