package admin

import (
	"encoding/json"
)

// DocumentFormat is the format of a Document that this package writes, and the only one that it
// reads.
const DocumentFormat = 1

// A Document is the whole state of a server, or of several that share a store: the applications,
// the pipelines, what their policies have learned, and the settings of models that were changed.
type Document struct {
	Format       int           `json:"format"`
	Applications []App         `json:"applications"`
	Pipelines    []Pipeline    `json:"pipelines,omitempty"` // except those of the configuration
	Policies     []PolicyState `json:"policies"`
	// Settings are by model, with the keys of [model.NAME] in the file.
	Settings map[string]map[string]string `json:"settings"`
}

// A PolicyState is what a policy knows for one user, in the form of that policy.
type PolicyState struct {
	Application string          `json:"application"`
	User        string          `json:"user"`
	State       json.RawMessage `json:"state"`
}

// A Change is what an import did, or would do, to one thing.
type Change struct {
	What   string          `json:"what"`             // application, pipeline, policy, model
	Name   string          `json:"name"`             // of a policy: application/user
	Before json.RawMessage `json:"before,omitempty"` // missing: there was none
	After  json.RawMessage `json:"after"`
	// Loses describes what was learned and would be lost.
	Loses string `json:"loses,omitempty"`
}

// Imported is the answer to /v1/import. It does not list what already matches the document.
type Imported struct {
	DryRun  bool     `json:"dry_run"`
	Changes []Change `json:"changes"`
}
