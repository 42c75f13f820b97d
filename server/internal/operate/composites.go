package operate

import (
	"context"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/internal/composite"
)

// Composites are the applications or the pipelines of a server, which operators create and change.
type Composites[D, T any] struct {
	of func() *composite.Definitions[D, T] // called once the store is open
}

// Applications are those of a store.
func Applications(s *Store) Composites[admin.App, *apps.App] {
	return Composites[admin.App, *apps.App]{func() *composite.Definitions[admin.App, *apps.App] {
		return s.Apps().Definitions
	}}
}

// List returns all of them, by name.
func (cs Composites[D, T]) List() ([]D, error) {
	return cs.of().List()
}

// Check returns everything that is wrong with one. Models that are not there are not.
func (cs Composites[D, T]) Check(d D) error {
	_, err := cs.of().Check(d)
	return err
}

// Create creates one. It fails if the name is taken.
func (cs Composites[D, T]) Create(ctx context.Context, d D) (D, error) {
	made, err := cs.of().Create(ctx, d)
	if err != nil {
		return d, err
	}
	return cs.of().Definition(made), nil
}

// Change modifies one in one atomic step, which may call change several times.
func (cs Composites[D, T]) Change(ctx context.Context, name string, change func(D) (D, error)) (none D, err error) {
	made, err := cs.of().Change(ctx, name, func(d *D) (err error) {
		*d, err = change(*d)
		return err
	})
	if err != nil {
		return none, err
	}
	return cs.of().Definition(made), nil
}

// Delete deletes one, and what it has learned.
func (cs Composites[D, T]) Delete(ctx context.Context, name string) error {
	return cs.of().Delete(ctx, name)
}
