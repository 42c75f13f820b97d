package operate

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/state"
)

// Documents exports and imports the contents of a server's store as one text.
type Documents struct {
	Store    *Store
	Settings *Settings
	Log      *slog.Logger
}

// Export returns everything in the store that determines what the server does, as one document.
func (ds Documents) Export() (admin.Document, error) {
	d := admin.Document{Format: admin.DocumentFormat, Applications: []admin.App{}, Policies: []admin.PolicyState{}}
	r, store := ds.Store.Apps(), ds.Store.State()
	for _, a := range r.All() {
		d.Applications = append(d.Applications, a.Definition)
	}
	for _, p := range ds.Store.Pipelines().All() {
		if !ds.Store.Pipelines().Fixed(p.Name) {
			d.Pipelines = append(d.Pipelines, p.Definition)
		}
	}
	learned, err := store.List("policy/")
	if err != nil {
		return d, err
	}
	for _, e := range learned {
		p, err := policyState(e)
		if err != nil {
			ds.Log.Warn("a policy state is not exported", "key", e.Key, "error", err)
			continue
		}
		if r.Find(p.Application) == nil { // taught after its deletion, and about to be deleted
			continue
		}
		d.Policies = append(d.Policies, p)
	}
	d.Settings, err = storedSettings(store, func(e state.Entry, err error) {
		ds.Log.Warn("settings of a model are not exported", "key", e.Key, "error", err)
	})
	return d, err
}

// policyState reads an entry of the store; apps.Registry has written it.
func policyState(e state.Entry) (p admin.PolicyState, err error) {
	app, user, ok := apps.PolicyUser(e.Key)
	if !ok || !json.Valid(e.Value) {
		return p, fmt.Errorf("not the state of a policy: %q", e.Key)
	}
	return admin.PolicyState{Application: app, User: user, State: e.Value}, nil
}

// Check lists everything that is wrong with the contents of a document.
func (ds Documents) Check(d admin.Document) (faults []string, err error) {
	_, faults, err = ds.planImport(d)
	return faults, err
}

// A plan is what an import would write: the entries, and each of them as the admin door shows it.
type plan struct {
	entries []state.Entry
	changes []admin.Change // by the same index; a change that only tidies up has no name
}

func (p *plan) add(what, name, key string, value []byte) {
	p.entries = append(p.entries, state.Entry{Key: key, Value: value})
	p.changes = append(p.changes, admin.Change{What: what, Name: name, After: value})
}

// planImport makes a plan, or lists all faults. The contents of a document are checked like single
// changes, and also together. The time is linear in the sizes of the document and of the store.
func (ds Documents) planImport(d admin.Document) (p plan, faults []string, err error) {
	r, store := ds.Store.Apps(), ds.Store.State()
	known := map[string]bool{}
	for _, a := range r.All() {
		known[a.Name] = true
	}
	taught := map[string]bool{} // keys of what the document says was learned
	for _, one := range d.Policies {
		taught[apps.PolicyKey(one.Application, one.User)] = true
	}
	seen := map[string]bool{}
	for _, a := range d.Applications {
		_, e, err := r.Entry(a)
		if err != nil {
			faults = append(faults, refusal(err).Error())
		} else {
			p.add("application", a.Name, e.Key, e.Value)
		}
		if seen[a.Name] {
			faults = append(faults, fmt.Sprintf("application %q occurs twice", a.Name))
		} else if !known[a.Name] {
			// Delete what an earlier application of that name had learned: it does not belong to
			// this one.
			left, err := store.List(state.Key("policy", a.Name) + "/")
			if err != nil {
				return p, nil, err
			}
			for _, e := range left {
				if !taught[e.Key] {
					p.add("", "", e.Key, nil)
				}
			}
		}
		seen[a.Name] = true
	}
	maps.Copy(known, seen)
	faults = append(faults, ds.planPipelines(&p, d.Pipelines)...)
	clear(seen)
	for _, one := range d.Policies {
		key := apps.PolicyKey(one.Application, one.User)
		what := fmt.Sprintf("policy of application %q for user %q", one.Application, one.User)
		value, err := apps.CheckState(one.State)
		switch {
		case err != nil:
			faults = append(faults, fmt.Sprintf("%s: %v", what, err))
		case !known[one.Application]:
			faults = append(faults, what+": no such application exists, on the server or in the document")
		case seen[key]:
			faults = append(faults, what+" occurs twice")
		default:
			p.add("policy", one.Application+"/"+one.User, key, value)
		}
		seen[key] = true
	}
	wrong, err := ds.planSettings(&p, store, d.Settings)
	if err != nil {
		return p, nil, err
	}
	faults = append(faults, wrong...)
	if len(faults) == 0 {
		if err := state.Check(p.entries); err != nil {
			return p, nil, err
		}
	}
	return p, faults, nil
}

// planPipelines plans pipelines, each of which must be sound by itself and with the models that
// serve now.
func (ds Documents) planPipelines(p *plan, list []admin.Pipeline) (faults []string) {
	seen := map[string]bool{}
	for _, d := range list {
		_, e, err := ds.Store.Pipelines().Entry(d)
		switch {
		case err != nil:
			faults = append(faults, refusal(err).Error())
		case seen[d.Name]:
			faults = append(faults, fmt.Sprintf("pipeline %q occurs twice", d.Name))
		case ds.Store.Pipelines().Fixed(d.Name):
			faults = append(faults, fmt.Sprintf("pipeline %q is in the configuration file of this server, and changes there only", d.Name))
		default:
			p.add("pipeline", d.Name, e.Key, e.Value)
		}
		seen[d.Name] = true
	}
	return faults
}

// planSettings plans settings of models, which must be valid together with those of other models.
func (ds Documents) planSettings(p *plan, store state.Store,
	settings map[string]map[string]string) (faults []string, err error) {
	all, err := storedSettings(store, func(state.Entry, error) {})
	if err != nil {
		return nil, err
	}
	maps.Copy(all, settings)
	_, refused := ds.Settings.File().Overlay(all)
	for _, model := range slices.Sorted(maps.Keys(settings)) {
		if err := refused[model]; err != nil {
			faults = append(faults, fmt.Sprintf("settings of model %q: %s", model, strings.Join(faultsOf(err), "; ")))
			continue
		}
		value, err := json.Marshal(settings[model])
		if err != nil {
			return nil, err
		}
		p.add("model", model, state.Key("settings", model), value)
	}
	return faults, nil
}

// importTimeout bounds how long the store may take for an import.
const importTimeout = time.Minute

// Import replaces everything that a document names, in one step or not at all; the rest of the
// store stays as it is.
func (ds Documents) Import(ctx context.Context, d admin.Document, dryRun bool) ([]admin.Change, error) {
	p, faults, err := ds.planImport(d)
	if err == nil {
		err = faulty(faults)
	}
	if err != nil {
		return nil, err
	}
	store := ds.Store.State()
	var changes []admin.Change
	for i, c := range p.changes {
		e, err := store.Get(p.entries[i].Key)
		if err != nil {
			return nil, err
		}
		if json.Valid(e.Value) { // an unreadable value cannot be shown
			c.Before = e.Value
		}
		if c.What == "policy" {
			c.Loses = apps.Lost(c.Before, c.After)
		}
		if c.What != "" && !bytes.Equal(c.Before, c.After) {
			changes = append(changes, c)
		}
	}
	if dryRun {
		return changes, nil
	}
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	if err := store.Write(ctx, p.entries); err != nil {
		return nil, err
	}
	ds.Store.Apps().Refresh()
	ds.Store.Pipelines().Refresh()
	ds.Settings.Read()
	return changes, nil
}
