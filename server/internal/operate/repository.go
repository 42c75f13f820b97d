package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/predict"
)

// Models returns the names by which clients may load and unload processes, sorted.
func (ps *Processes) Models() []string {
	var names []string
	for _, p := range ps.all() {
		names = append(names, p.model())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// serving returns the processes that serve a model.
func (ps *Processes) serving(model string) []*process {
	return slices.DeleteFunc(slices.Clone(ps.all()), func(p *process) bool { return !p.hasName(model) })
}

// State returns the most advanced state among the processes of a version of a model; "": of any.
func (ps *Processes) State(model, version string) predict.Condition {
	at := predict.Condition{State: predict.Unavailable, Reason: "no process"}
	for _, p := range ps.serving(model) {
		if at.State != predict.Unavailable {
			break
		}
		now, id := p.current(), scheduler.ModelID{Name: model, Version: version}
		if version != "" && now.loaded() && isOtherVersion(id, now.versions) {
			at.Reason = "its process serves another version"
			at.Cause = fmt.Sprintf("its process serves %v", now.versions)
			continue
		}
		at = p.state()
	}
	return at
}

// isOtherVersion reports whether processes that have registered ids serve other versions of a model
// than this one, such as the one that has replaced it.
func isOtherVersion(id scheduler.ModelID, ids []scheduler.ModelID) bool {
	return !slices.Contains(ids, id) &&
		slices.ContainsFunc(ids, func(other scheduler.ModelID) bool { return other.Name == id.Name })
}

// Load starts the processes that are not running and waits until the model is ready.
func (ps *Processes) Load(ctx context.Context, model string) error {
	for _, p := range ps.serving(model) {
		if err := p.start(); err != nil {
			return err
		}
	}
	return ps.ready(ctx, model)
}

// ready waits until a model that is being loaded is ready.
func (ps *Processes) ready(ctx context.Context, model string) error {
	return ps.poll(func() (bool, error) {
		if t, err := ps.gate.Target(model, ""); err == nil && t.Serves {
			ps.log.Info("model loaded", "model", model)
			return true, nil
		}
		if other := ps.registersOthers(model); other != "" {
			return false, fmt.Errorf("%w: model %q could not be loaded: %s", scheduler.ErrUnavailable, model, other)
		}
		switch at := ps.State(model, ""); {
		case at.State == predict.Unavailable:
			return false, fmt.Errorf("%w: model %q could not be loaded: %s", scheduler.ErrUnavailable, model,
				at.Detail())
		case errors.Is(ctx.Err(), context.Canceled):
			return false, fmt.Errorf("%w: the client disconnected while model %q was loading", scheduler.ErrCanceled,
				model)
		case ctx.Err() != nil:
			return false, fmt.Errorf("%w: model %q is still loading: %s", scheduler.ErrDeadlineExceeded, model,
				at.Detail())
		}
		return false, nil
	}, ctx.Done())
}

// registersOthers says why a model that is being loaded will never be ready: all of its processes
// have registered other models, and have had enough time for this one. "" if it may still register.
func (ps *Processes) registersOthers(model string) string {
	text := ""
	for _, p := range ps.serving(model) {
		at := p.current()
		ids := at.versions
		if len(ids) == 0 || slices.ContainsFunc(ids, func(id scheduler.ModelID) bool { return id.Name == model }) {
			return ""
		}
		// If the settings name no model, the process decides.
		if p.table().Model != "" && time.Since(at.since) < ps.Grace {
			return ""
		}
		text = fmt.Sprintf("the processes of container %q have registered %v, and not %q: set model in its [[container]] to the model that it serves",
			p.table().Name, ids, model)
	}
	return text
}

// Unload stops the processes that are running and waits until they have ended, for the longest
// stop_timeout at most.
func (ps *Processes) Unload(model string) error {
	err := each(ps.serving(model), (*process).unload)
	ps.log.Info("model unloaded", "model", model)
	return err
}
