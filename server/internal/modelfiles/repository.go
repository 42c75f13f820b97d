package modelfiles

import (
	"context"
	"slices"

	"github.com/shivad/shivad/server/internal/predict"
)

// A Repository is what clients load and unload: operate's models. Loading one looks at its files
// first, so that what has just been written is what serves.
type Repository struct {
	predict.Repository
	Files *Manager
}

// Models adds the models whose files are known, and whose processes have not started yet.
func (r Repository) Models() []string {
	names := append(r.Repository.Models(), r.Files.Models()...)
	slices.Sort(names)
	return slices.Compact(names)
}

// Load serves what the files of a model are now, and waits until it is ready.
func (r Repository) Load(ctx context.Context, model string) error {
	if err := r.Files.Refresh(ctx, model); err != nil {
		return err
	}
	return r.Repository.Load(ctx, model)
}
