package operate

import (
	"context"

	"github.com/shivad/shivad/server/admin"
)

// Applications creates and changes applications.
type Applications struct{ Store *Store }

// List returns all applications, by name.
func (as Applications) List() ([]admin.App, error) {
	// An unread store is an error, not an empty list.
	if _, err := as.Store.State().List("apps/"); err != nil {
		return nil, refusal(err)
	}
	var list []admin.App
	for _, a := range as.Store.Apps().Apps() {
		list = append(list, a.Definition)
	}
	return list, nil
}

// Check returns everything that is wrong with an application.
func (as Applications) Check(a admin.App) error {
	_, err := as.Store.Apps().Check(a)
	return refusal(err)
}

// Create creates an application. It fails if the name is taken.
func (as Applications) Create(ctx context.Context, a admin.App) (admin.App, error) {
	made, err := as.Store.Apps().Create(ctx, a)
	if err != nil {
		return a, refusal(err)
	}
	return made.Definition, nil
}

// Change modifies an application in one atomic step, which may call change several times.
func (as Applications) Change(ctx context.Context, name string,
	change func(admin.App) (admin.App, error)) (admin.App, error) {
	made, err := as.Store.Apps().Change(ctx, name, func(a *admin.App) (err error) {
		*a, err = change(*a)
		return err
	})
	if err != nil {
		return admin.App{}, refusal(err)
	}
	return made.Definition, nil
}

// Delete deletes an application and what its policy has learned.
func (as Applications) Delete(ctx context.Context, name string) error {
	return refusal(as.Store.Apps().Delete(ctx, name))
}
