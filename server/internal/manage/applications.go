package manage

import (
	"context"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
)

// Applications are made and changed here, in the words of the admin door.
type Applications struct{ store *Store }

// NewApplications manages those of a store.
func NewApplications(store *Store) *Applications { return &Applications{store} }

// shown is an application in the words of the admin door.
func shown(d apps.Definition) admin.App {
	a := admin.App{Name: d.Name, Policy: d.Policy, Params: d.Params, Default: d.Default, Models: make([]string, len(d.Models))}
	for i, l := range d.Models {
		a.Models[i] = string(l)
	}
	if d.SLO != 0 {
		a.SLO = time.Duration(d.SLO).String()
	}
	return a
}

// defined undoes shown. What it gives beside an error is all but the SLO, whose form is at fault.
func defined(a admin.App) (d apps.Definition, err error) {
	d = apps.Definition{Name: a.Name, Policy: a.Policy, Params: a.Params, Default: a.Default}
	for _, l := range a.Models {
		d.Models = append(d.Models, apps.Link(l))
	}
	if a.SLO != "" {
		if err := d.SLO.UnmarshalText([]byte(a.SLO)); err != nil {
			return d, fmt.Errorf("slo: %w", err)
		}
	}
	return d, nil
}

// List is all of them, by name.
func (as *Applications) List() ([]admin.App, error) {
	r, store, err := as.store.get()
	if err != nil {
		return nil, err
	}
	if _, err := store.List("apps/"); err != nil { // what is not known yet is not nothing
		return nil, refusal(err)
	}
	var list []admin.App
	for _, a := range r.Apps() {
		list = append(list, shown(a.Definition))
	}
	return list, nil
}

// Check lists all that is wrong with an application.
func (as *Applications) Check(a admin.App) error {
	r, _, err := as.store.get()
	if err != nil {
		return err
	}
	d, form := defined(a)
	_, err = r.Check(d)
	switch {
	case form != nil && err != nil:
		err = fmt.Errorf("%w; %w", err, form)
	case form != nil:
		err = fmt.Errorf("%w: application %q: %w", scheduler.ErrInvalidInput, a.Name, form)
	}
	return refusal(err)
}

// Create makes one; that there is one of the name is an error.
func (as *Applications) Create(ctx context.Context, a admin.App) (admin.App, error) {
	r, _, err := as.store.get()
	if err != nil {
		return a, err
	}
	d, err := defined(a)
	if err != nil {
		return a, as.Check(a)
	}
	made, err := r.Create(ctx, d)
	if err != nil {
		return a, refusal(err)
	}
	return shown(made.Definition), nil
}

// Change changes one in an atomic step, for which change may be called again.
func (as *Applications) Change(ctx context.Context, name string, change func(admin.App) (admin.App, error)) (admin.App, error) {
	r, _, err := as.store.get()
	if err != nil {
		return admin.App{}, err
	}
	made, err := r.Change(ctx, name, func(d *apps.Definition) error {
		a, err := change(shown(*d))
		if err != nil {
			return err
		}
		if *d, err = defined(a); err != nil {
			return as.Check(a)
		}
		return nil
	})
	if err != nil {
		return admin.App{}, refusal(err)
	}
	return shown(made.Definition), nil
}

// Delete ends one, and forgets what its policy has learned.
func (as *Applications) Delete(ctx context.Context, name string) error {
	r, _, err := as.store.get()
	if err != nil {
		return err
	}
	return refusal(r.Delete(ctx, name))
}
