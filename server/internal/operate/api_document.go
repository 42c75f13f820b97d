package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/shiva/jsonscan"
)

// parseDocument reads a document. The faults are those of its form; the document has the parts
// without faults.
func parseDocument(text []byte) (d admin.Document, faults []string) {
	var in struct {
		Format       *int                         `json:"format"`
		Applications []json.RawMessage            `json:"applications"`
		Pipelines    []json.RawMessage            `json:"pipelines"`
		Policies     []json.RawMessage            `json:"policies"`
		Settings     map[string]map[string]string `json:"settings"`
	}
	if err := jsonscan.Unmarshal(text, &in); err != nil {
		return d, []string{"expected an exported document: " + err.Error()}
	}
	if in.Format == nil {
		faults = append(faults, fmt.Sprintf("format: missing; expected %d", admin.DocumentFormat))
	} else if d.Format = *in.Format; d.Format != admin.DocumentFormat {
		return d, []string{fmt.Sprintf("format: expected %d, got %d", admin.DocumentFormat, d.Format)}
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
	for i, text := range in.Pipelines {
		p, wrong, whole := parsePipeline(text)
		for _, f := range wrong {
			faults = append(faults, fmt.Sprintf("pipelines[%d]: %s", i, f))
		}
		if whole {
			d.Pipelines = append(d.Pipelines, p)
		}
	}
	for i, text := range in.Policies {
		var p admin.PolicyState
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
func (s Sources) losses(ctx context.Context, d admin.Document) error {
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
	return refuse(http.StatusConflict, "nothing was imported, because the import would discard what policies have learned: %s; discard=true imports it anyway",
		strings.Join(lost, "; "))
}

func (s Sources) importState(r *http.Request) (any, error) {
	dry, err := boolParameter(r, "dry_run")
	discard, fault := boolParameter(r, "discard")
	if err = errors.Join(err, fault); err != nil {
		return nil, err
	}
	sent, err := body(r)
	if isStatus(err, http.StatusRequestEntityTooLarge) {
		err = refuse(http.StatusRequestEntityTooLarge, "the document is larger than admin.import_bytes, %d bytes",
			s.access().ImportBytes)
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
	return admin.Imported{DryRun: dry, Changes: append([]admin.Change{}, changes...)}, err
}

// auditImport records an import as one action, with the first of its changes.
func (s Sources) auditImport(r *http.Request, changes []admin.Change) {
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
	s.Trail.Add(access.Entry{Source: s.source(r), Action: "import", What: "state",
		After: access.AuditText(map[string]any{"changes": len(changes), "first": first})})
}
