package operate

import (
	"context"
	"slices"

	"github.com/shivad/shivad/server/internal/modelfiles"
	"github.com/shivad/shivad/server/internal/predict"
)

var _ predict.Repository = Loadable{}

// Loadable is what clients load and unload: the models of processes, and those of files. Loading
// one looks at its files first, so that what has just been written is what serves.
type Loadable struct {
	*Processes
	Files *modelfiles.Manager
}

// Models adds the models whose files are known, and whose processes have not started yet.
func (l Loadable) Models() []string {
	names := append(l.Processes.Models(), l.Files.Models()...)
	slices.Sort(names)
	return slices.Compact(names)
}

// Look looks at the files, of which there may be new ones.
func (l Loadable) Look(ctx context.Context) error { return l.Files.Look(ctx) }

// Load serves what the files of a model are now, and waits until it is ready.
func (l Loadable) Load(ctx context.Context, model string) error {
	if err := l.Files.Refresh(ctx, model); err != nil {
		return err
	}
	return l.Processes.Load(ctx, model)
}
