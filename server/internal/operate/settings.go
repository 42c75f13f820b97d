package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/gate"
	"github.com/shivad/shivad/server/internal/wake"
	"github.com/shivad/shivad/server/state"
	"github.com/shivad/shivad/shiva/unixsocket"
)

// Model settings that were changed at run time are in the store, one key for each model: an object
// of texts with the keys of [model.NAME] in the file. They override the file's, in every server
// that shares the store. A server ignores and logs settings that contradict its file: the store may
// become reachable after the start, and servers with different files may share it, so refusing to
// start would stop one server because of a change made at another.

const settingsPrefix = "settings/"

// Settings are the configuration in effect: the file's, overridden by the settings in the store.
// All methods may be called from any goroutine.
type Settings struct {
	store *Store
	to    Governed
	log   *slog.Logger

	mu        sync.Mutex // guards changes of either
	base, now atomic.Pointer[config.Config]
}

// Governed are the parts that the settings are applied to.
type Governed struct {
	Gate      *gate.Gate
	Scheduler *scheduler.Scheduler
	Sessions  *Sessions
	Processes *Processes
}

// NewSettings returns the settings of the file, until Read.
func NewSettings(file config.Config, store *Store, log *slog.Logger) *Settings {
	s := &Settings{store: store, log: log}
	s.base.Store(&file)
	s.now.Store(&file)
	return s
}

// Attach sets what the settings are applied to, once, before any other method than Now and File.
func (s *Settings) Attach(to Governed) { s.to = to }

// File returns the last loaded configuration.
func (s *Settings) File() *config.Config { return s.base.Load() }

// Now returns the configuration in effect.
func (s *Settings) Now() *config.Config { return s.now.Load() }

// Replace installs a loaded configuration and returns the one before.
func (s *Settings) Replace(file config.Config) (before *config.Config) {
	s.mu.Lock()
	before = s.base.Swap(&file)
	s.mu.Unlock()
	s.Read()
	return before
}

// Access returns who may use the admin door. The host that the door listens on counts among its
// names.
func (s *Settings) Access() Access {
	c := s.Now().Admin
	a := Access{Hosts: c.Hosts, Profiling: c.Profiling, ImportBytes: int64(c.ImportBytes)}
	if _, unix := unixsocket.Cut(c.Listen); unix {
		return a
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && host != "" {
		a.Hosts = append(slices.Clip(a.Hosts), host)
	}
	return a
}

// Set changes settings of a model, all of them or none. They take effect at once, for all versions;
// the file is not written. nil reverts a setting to the file's value. Set returns the values in
// effect before and after.
func (s *Settings) Set(ctx context.Context, model string,
	settings map[string]*string) (before, after map[string]any, err error) {
	var faults []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if settings[key] == nil { // the other settings are checked with their values
			if err := config.Changeable(key); err != nil {
				faults = append(faults, key+": "+err.Error())
			}
		}
	}
	if v := settings["default_version"]; v != nil && *v != "" {
		faults = append(faults, s.versionFaults(model, *v)...)
	}
	known := s.to.Gate.Versions(model) != nil
	before = s.inEffect(model, settings)
	_, err = s.store.State().Update(ctx, state.Key("settings", model), "", func(old []byte) ([]byte, error) {
		stored := map[string]string{}
		if old == nil && !known {
			return nil, &Error{Status: http.StatusNotFound, Text: fmt.Sprintf("no model %q, and no settings of it", model)}
		}
		if old != nil {
			if err := json.Unmarshal(old, &stored); err != nil {
				stored = map[string]string{} // unreadable: in effect nowhere
			}
		}
		for key, value := range settings {
			if value == nil {
				delete(stored, key)
			} else {
				stored[key] = *value
			}
		}
		_, refused := s.File().Overlay(map[string]map[string]string{model: stored})
		if err := faulty(append(slices.Clone(faults), faultsOf(refused[model])...)); err != nil {
			return nil, err
		}
		if len(stored) == 0 {
			return nil, nil
		}
		return json.Marshal(stored)
	})
	if err != nil {
		return nil, nil, err
	}
	s.Read()
	return before, s.inEffect(model, settings), nil
}

// faulty returns the error for invalid settings; nil if there are no faults.
func faulty(faults []string) error {
	if len(faults) == 0 {
		return nil
	}
	return &Error{Status: http.StatusBadRequest, Text: strings.Join(faults, "; ")}
}

// inEffect returns the values in effect of some settings of a model.
func (s *Settings) inEffect(model string, settings map[string]*string) map[string]any {
	var all map[string]any
	text, err := json.Marshal(s.Now().Model(model))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		panic(err) // a policy always marshals to an object
	}
	maps.DeleteFunc(all, func(key string, _ any) bool { _, asked := settings[key]; return !asked })
	return all
}

// faultsOf returns the faults in an error of package config, one sentence each.
func faultsOf(err error) (list []string) {
	if e, ok := errors.AsType[*config.Error](err); ok {
		for _, f := range e.Faults {
			list = append(list, f.String())
		}
	}
	return list
}

// Read applies the settings in the store.
func (s *Settings) Read() {
	s.mu.Lock()
	defer s.mu.Unlock()
	stored, err := storedSettings(s.store.State(), func(e state.Entry, err error) {
		s.log.Error("settings of a model in the state store are unreadable; the file's settings apply", "key", e.Key,
			"settings", string(e.Value), "error", err)
	})
	if err != nil {
		s.log.Warn("settings of models cannot be read from the state store; the settings in effect stay", "error", err)
		return
	}
	next, refused := s.File().Overlay(stored)
	for _, model := range slices.Sorted(maps.Keys(refused)) {
		s.log.Error("settings of a model in the state store are invalid with this server's file; the file's settings apply",
			"key", state.Key("settings", model), "settings", stored[model], "error", refused[model])
	}
	s.now.Store(&next)
	if err := s.to.Scheduler.Reconfigure(next.Defaults.Scheduler(), next.SchedulerModels()); err != nil {
		// Overlay has validated them, so this is a bug.
		s.log.Error("new settings of models cannot be applied", "error", err)
	}
	s.to.Gate.Changed()
	s.to.Sessions.Changed()
}

// storedSettings returns the settings of all models in a store. Unreadable entries are left out and
// passed to unusable.
func storedSettings(store state.Store, unusable func(state.Entry, error)) (map[string]map[string]string, error) {
	entries, err := store.List(settingsPrefix)
	all := map[string]map[string]string{}
	for _, e := range entries {
		var settings map[string]string
		segments, err := state.Segments(e.Key)
		if err != nil || len(segments) != 2 {
			err = fmt.Errorf("not a key of settings: %q", e.Key)
		} else {
			err = json.Unmarshal(e.Value, &settings)
		}
		if err != nil {
			unusable(e, err)
			continue
		}
		all[segments[1]] = settings
	}
	return all, err
}

// Follow applies the changes of other servers, until stop is closed.
func (s *Settings) Follow(stop <-chan struct{}) {
	changed := make(chan struct{}, 1)
	defer s.store.State().Watch(settingsPrefix, changed)()
	for range wake.Each(changed, stop) {
		s.Read()
	}
}

// versionFaults says what is wrong with a version that has no live replica, and names the versions
// that have one.
func (s *Settings) versionFaults(model, version string) []string {
	var live []string
	for _, m := range s.to.Gate.Models() {
		if m.Name == model && m.Ready {
			live = append(live, strconv.Quote(m.Version))
			if m.Version == version {
				return nil
			}
		}
	}
	if len(live) == 0 {
		live = []string{"none"}
	}
	text := fmt.Sprintf("default_version: no container serves version %q of model %q; ready: %s", version, model,
		strings.Join(live, ", "))
	if container := s.to.Processes.Starts(scheduler.ModelID{Name: model, Version: version}); container != "" {
		text += fmt.Sprintf("; \"shivactl containers start %s\" starts it", container)
	}
	return []string{text}
}
