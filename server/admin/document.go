package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// DocumentFormat is the format of a Document that this package writes, and the only one that it
// reads.
const DocumentFormat = 1

// A Document is the whole state of a server, or of several that share a store: the applications,
// what their policies have learned, and the settings of models that were changed.
type Document struct {
	Format       int           `json:"format"`
	Applications []App         `json:"applications"`
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
	What   string          `json:"what"`             // application, policy, model
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

// parseDocument reads a document. The faults are those of its form; the document has the parts
// without faults.
func parseDocument(text []byte) (d Document, faults []string) {
	var in struct {
		Format       *int                         `json:"format"`
		Applications []json.RawMessage            `json:"applications"`
		Policies     []json.RawMessage            `json:"policies"`
		Settings     map[string]map[string]string `json:"settings"`
	}
	if err := jsonscan.Unmarshal(text, &in); err != nil {
		return d, []string{"expected a document as /v1/export returns it: " + err.Error()}
	}
	if in.Format == nil {
		faults = append(faults, fmt.Sprintf("format: missing; expected %d", DocumentFormat))
	} else if d.Format = *in.Format; d.Format != DocumentFormat {
		return d, []string{fmt.Sprintf("format: expected %d, got %d", DocumentFormat, d.Format)}
	}
	for i, text := range in.Applications {
		a, wrong, whole := parseApp(text)
		for _, f := range wrong {
			faults = append(faults, fmt.Sprintf("applications[%d]: %s", i, f))
		}
		if whole {
			d.Applications = append(d.Applications, a)
		}
	}
	for i, text := range in.Policies {
		var p PolicyState
		if err := jsonscan.Unmarshal(text, &p); err != nil {
			faults = append(faults, fmt.Sprintf("policies[%d]: %v", i, err))
			continue
		}
		d.Policies = append(d.Policies, p)
	}
	d.Settings = in.Settings
	return d, faults
}

func (s Sources) export(*http.Request) (any, error) { return s.Documents.Export() }

// boolParameter reads a boolean parameter of the query; a missing one is false.
func boolParameter(r *http.Request, name string) (bool, error) {
	switch text := r.URL.Query().Get(name); text {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, refuse(http.StatusBadRequest, "%s: expected true or false, got %q", name, text)
	}
}

// losses refuses an import that would delete what was learned.
func (s Sources) losses(ctx context.Context, d Document) error {
	changes, err := s.Documents.Import(ctx, d, true)
	if err != nil {
		return err
	}
	const most = 10 // losses that the error lists
	var lost []string
	n := 0
	for _, c := range changes {
		if c.Loses == "" {
			continue
		}
		if n++; n <= most {
			lost = append(lost, fmt.Sprintf("%s: %s", c.Name, c.Loses))
		}
	}
	if n == 0 {
		return nil
	}
	if n > most {
		lost = append(lost, fmt.Sprintf("and %d more", n-most))
	}
	return refuse(http.StatusConflict, "nothing was imported, because the import would discard what policies have learned: %s; discard=true imports it anyway", strings.Join(lost, "; "))
}

func (s Sources) importState(r *http.Request) (any, error) {
	dry, err := boolParameter(r, "dry_run")
	discard, fault := boolParameter(r, "discard")
	if err = errors.Join(err, fault); err != nil {
		return nil, err
	}
	sent, err := body(r)
	if isStatus(err, http.StatusRequestEntityTooLarge) {
		err = refuse(http.StatusRequestEntityTooLarge, "the document is larger than admin.import_bytes, %d bytes", s.access().ImportBytes)
	}
	if err != nil {
		return nil, err
	}
	d, faults := parseDocument(sent)
	wrong, err := s.Documents.Check(d)
	if err == nil {
		err = refuseAll(append(faults, wrong...))
	}
	if err == nil && !dry && !discard {
		err = s.losses(r.Context(), d)
	}
	if err != nil {
		return nil, err
	}
	changes, err := s.Documents.Import(r.Context(), d, dry)
	if !dry && err == nil {
		s.auditImport(r, changes)
	}
	return Imported{dry, append([]Change{}, changes...)}, err
}

// auditImport records an import as one action, with the first of its changes.
func (s Sources) auditImport(r *http.Request, changes []Change) {
	const most = 20
	type change struct {
		What string `json:"what"`
		Name string `json:"name"`
	}
	var first []change
	for _, c := range changes {
		if len(first) < most {
			first = append(first, change{c.What, c.Name})
		}
		s.chronicle(r, c.What, c.Name, c.Before, c.After)
	}
	s.Trail.Add(access.Entry{Source: s.source(r), Action: "import", What: "state", After: access.AuditText(map[string]any{"changes": len(changes), "first": first})})
}
