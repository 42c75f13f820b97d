package admin

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

// Explanations is the answer to /v1/models/{name}/explain.
type Explanations struct {
	Versions []Explanation `json:"versions"`
}

// An Explanation says in sentences what a version of a model does, why its batches have their
// sizes, what limits it, and what to change.
type Explanation struct {
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Sentences []string `json:"sentences"`
}
