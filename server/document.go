package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/selection"
	"github.com/shivad/shivad/server/state"
)

// export is everything in the store that the server would be another without, as one document.
func (s *Server) export() (admin.Document, error) {
	d := admin.Document{Format: admin.DocumentFormat, Applications: []admin.App{}, Policies: []admin.PolicyState{}, Settings: map[string]map[string]string{}}
	r, store, err := s.kept()
	if err != nil {
		return d, err
	}
	for _, a := range r.Apps() {
		d.Applications = append(d.Applications, shown(a.Definition))
	}
	learned, err := store.List("policy/")
	if err != nil {
		return d, refusal(err)
	}
	for _, e := range learned {
		p, err := policyState(e)
		if err != nil {
			s.log.Warn("a policy state is not exported", "key", e.Key, "error", err)
			continue
		}
		d.Policies = append(d.Policies, p)
	}
	changed, err := store.List(settingsPrefix)
	if err != nil {
		return d, refusal(err)
	}
	for _, e := range changed {
		model, settings, err := storedSettings(e)
		if err != nil {
			s.log.Warn("settings of a model are not exported", "key", e.Key, "error", err)
			continue
		}
		d.Settings[model] = settings
	}
	return d, nil
}

// policyState reads an entry of the store; apps.Registry has written it.
func policyState(e state.Entry) (p admin.PolicyState, err error) {
	segments, err := state.Segments(e.Key)
	if err != nil {
		return p, err
	}
	if len(segments) != 3 || segments[2] == "" || !json.Valid(e.Value) {
		return p, fmt.Errorf("not the state of a policy: %q", e.Key)
	}
	return admin.PolicyState{Application: segments[1], User: segments[2][1:], State: e.Value}, nil
}

// checkImport lists all that is wrong with the contents of a document.
func (s *Server) checkImport(d admin.Document) (faults []string, err error) {
	r, _, err := s.kept()
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, a := range r.Apps() {
		known[a.Name] = true
	}
	seen := map[string]bool{}
	for _, a := range d.Applications {
		if err := s.checkApplication(a); err != nil {
			faults = append(faults, err.Error())
		}
		if seen[a.Name] {
			faults = append(faults, fmt.Sprintf("application %q is there twice", a.Name))
		}
		seen[a.Name], known[a.Name] = true, true
	}
	clear(seen)
	for _, p := range d.Policies {
		what := fmt.Sprintf("policy of application %q for user %q", p.Application, p.User)
		var st selection.State
		switch err := json.Unmarshal(p.State, &st); {
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s: %v", what, err))
		case !known[p.Application]:
			faults = append(faults, what+": there is no such application, here or in the document")
		case seen[apps.PolicyKey(p.Application, p.User)]:
			faults = append(faults, what+" is there twice")
		}
		seen[apps.PolicyKey(p.Application, p.User)] = true
	}
	for _, model := range slices.Sorted(maps.Keys(d.Settings)) {
		if _, err := s.over(s.cfg, model, d.Settings[model]); err != nil {
			faults = append(faults, fmt.Sprintf("settings of model %q: %v", model, err))
		}
	}
	return faults, nil
}

// importDocument puts what a checked document has in the place of what is here; what the document does not name stays. Applications come
// before what their policies have learned. A store has no updates of several keys, so an error in the middle leaves what
// was done until then, which the changes tell; to import again does the rest.
func (s *Server) importDocument(ctx context.Context, d admin.Document, dryRun bool) (changes []admin.Change, err error) {
	r, store, err := s.kept()
	if err != nil {
		return nil, err
	}
	put := func(what, name, key string, value []byte) error {
		var before []byte
		replace := func(old []byte) ([]byte, error) { before = old; return value, nil }
		if dryRun {
			e, err := store.Get(key)
			if err != nil {
				return err
			}
			before = e.Value
		} else if _, err := store.Update(ctx, key, "", replace); err != nil {
			return err
		}
		if !bytes.Equal(before, value) {
			changes = append(changes, admin.Change{What: what, Name: name, Before: before, After: value})
		}
		return nil
	}
	defer func() {
		if !dryRun {
			s.readSettings()
		}
		err = refusal(err)
	}()
	for _, a := range d.Applications {
		c := admin.Change{What: "application", Name: a.Name}
		if old := r.App(a.Name); old != nil {
			if c.Before, err = json.Marshal(shown(old.Definition)); err != nil {
				return changes, err
			}
		}
		def, err := defined(a)
		if err != nil {
			return changes, err
		}
		var after *apps.App
		if dryRun {
			after, err = r.Check(def)
		} else {
			after, err = r.Put(ctx, def)
		}
		if err != nil {
			return changes, err
		}
		if c.After, err = json.Marshal(shown(after.Definition)); err != nil {
			return changes, err
		}
		if !bytes.Equal(c.Before, c.After) {
			changes = append(changes, c)
		}
	}
	for _, p := range d.Policies {
		var value bytes.Buffer
		if err := json.Compact(&value, p.State); err != nil {
			return changes, err
		}
		if err := put("policy", p.Application+"/"+p.User, apps.PolicyKey(p.Application, p.User), value.Bytes()); err != nil {
			return changes, err
		}
	}
	for _, model := range slices.Sorted(maps.Keys(d.Settings)) {
		value, err := json.Marshal(d.Settings[model])
		if err != nil {
			return changes, err
		}
		if err := put("model", model, state.Key("settings", model), value); err != nil {
			return changes, err
		}
	}
	return changes, nil
}
