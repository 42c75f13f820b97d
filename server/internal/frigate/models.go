package frigate

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/predict"
)

// Models maps the file that a detector asked for, and its model_type, to a model, "name" or
// "name/version". Keys are "FILE:TYPE", "FILE", "*:TYPE" and "*".
type Models map[string]string

// of returns the model for a file and a type: that of the first key that exists, in the order
// above, or else the model named like the file. It returns "" if no file was asked for and no key
// matches.
func (m Models) of(file, kind string) string {
	kind = plain(kind)
	for _, name := range []string{file, "*"} {
		for key, model := range m {
			if of, typed, _ := strings.Cut(key, ":"); name != "" && of == name && typed != "" && plain(typed) == kind {
				return model
			}
		}
		if model, ok := m[name]; ok && name != "" {
			return model
		}
	}
	return stem(file)
}

// plain removes the dashes of a type: Frigate's configuration has them, its detectors do not.
func plain(kind string) string { return strings.ReplaceAll(kind, "-", "") }

// stem is a file's name without its extension.
func stem(file string) string { return strings.TrimSuffix(file, path.Ext(file)) }

// all returns, sorted, the models that a detector that asked for a file may use, whatever its type.
func (m Models) all(file string) []string {
	for _, name := range []string{file, "*"} {
		var models []string
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if of, _, _ := strings.Cut(key, ":"); of == name {
				models = append(models, m[key])
			}
		}
		if models != nil {
			slices.Sort(models)
			return slices.Compact(models)
		}
	}
	return []string{stem(file)}
}

const (
	// mostName bounds the name of a model file, in bytes.
	mostName = 128
	// modelTimeout is how long a detector's request waits for models that are not served yet. The
	// detector itself waits for 30 s, and never asks again once it is told that they are missing.
	modelTimeout = 25 * time.Second
	// saveAction and modelFile name the saving of a model file in the audit trail.
	saveAction, modelFile = "save", "model file"
	// checkInterval is the interval at which await checks the models.
	checkInterval = 20 * time.Millisecond
)

// modelRequest answers a model_request, which asks whether the models for a file are served.
func (a *request) modelRequest() (s modelStatus, err error) {
	a.file = a.ModelName
	models := a.settings.Models.all(a.file)
	known := slices.ContainsFunc(models, a.known)
	stored := slices.ContainsFunc(models, a.sees) && a.door.store.has(a.file)
	s.Available = new(known || stored)
	if !*s.Available && a.door.store != nil {
		return s, fmt.Errorf("%w: no model %q: send its file", scheduler.ErrNotFound, models)
	}
	err = a.await(models)
	s.Available = new(err == nil || stored || slices.ContainsFunc(models, a.known))
	return s, err
}

// sees reports whether the detector may know of a model. It learns of no file whose models it may
// not use.
func (a *request) sees(model string) bool {
	name, _, _ := strings.Cut(model, "/")
	return a.who.Sees(name)
}

// known reports whether a model has registered, or is one that the server could start.
func (a *request) known(model string) bool {
	name, version, _ := strings.Cut(model, "/")
	_, err := a.service().ModelReady(name, version)
	return err == nil || a.service().Manages(name)
}

// await waits until all of the models are served. Its error names the missing one.
func (a *request) await(models []string) error {
	over := time.NewTimer(time.Until(a.began.Add(modelTimeout)))
	defer over.Stop()
	again := time.NewTicker(checkInterval)
	defer again.Stop()
	for {
		missing := a.missing(models)
		if !errors.Is(missing, scheduler.ErrNotFound) && !errors.Is(missing, scheduler.ErrUnavailable) {
			return missing
		}
		select {
		case <-again.C:
		case <-over.C:
			return missing
		case <-a.ctx.Done():
			return fmt.Errorf("%w: the detector has disconnected", scheduler.ErrCanceled)
		case <-a.door.closing.Done():
			return gate.ErrDraining
		}
	}
}

// missing returns an error for the first of the models that is not served, or nil.
func (a *request) missing(models []string) error {
	for _, model := range models {
		name, version, _ := strings.Cut(model, "/")
		ready, err := a.service().ModelReady(name, version)
		if err != nil {
			return err
		}
		if !ready.Ready {
			return fmt.Errorf("%w: model %q: no container of it is connected", scheduler.ErrUnavailable, model)
		}
	}
	return nil
}

// save stores a model file, and waits until its models are served.
func (a *request) save() (s modelStatus, err error) {
	by := predict.Caller{Source: access.Source{Identity: a.who.Name(), Address: a.RemoteAddr().String(), Door: "frigate"},
		Listener: a.Door()}
	if a.door.store == nil {
		err := fmt.Errorf("%w: detectors may not send model files (frigate.model_directory is not set)",
			fault.ErrPermissionDenied)
		a.service().Refused(by.Source, saveAction, modelFile, a.ModelName, err)
		return s, err
	}
	models := a.settings.Models.all(a.ModelName)
	for _, model := range models {
		name, _, _ := strings.Cut(model, "/")
		if err := a.service().Permit(by, name, saveAction); err != nil {
			return s, err
		}
	}
	err = a.door.store.save(a.ModelName, a.data.Data, a.settings)
	note := access.Entry{Source: by.Source, Action: saveAction, What: modelFile, Name: a.ModelName}
	if err != nil {
		note.Error = fault.Text(err)
	} else {
		note.After = fmt.Sprintf(`{"bytes":%d,"sha256":"%x"}`, len(a.data.Data), sha256.Sum256(a.data.Data))
	}
	a.door.trail.Add(note)
	if err != nil {
		return s, err
	}
	a.file, s.Saved = a.ModelName, new(true)
	ctx, cancel := context.WithDeadline(a.ctx, a.began.Add(modelTimeout))
	defer cancel()
	defer context.AfterFunc(a.door.closing, cancel)()
	// The server's processes may be stopped, or have ended because the file was missing.
	for _, model := range models {
		name, _, _ := strings.Cut(model, "/")
		if a.service().Manages(name) {
			if err := a.service().Load(ctx, by, name, nil); err != nil {
				return s, err
			}
		}
	}
	return s, a.await(models)
}
