package server

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// changeable are the settings of a model that can be changed while it serves: those of its batching, its versions and its cache.
var changeable = []string{
	"strategy", "objective", "max_batch", "batch_bytes", "delay", "queue_rows", "queue_bytes", "execution_timeout",
	"retry", "shed", "slots", "pad", "default_version", "retire_after",
	"cache", "cache_ttl",
}

// set changes settings of a model, all of them or none. They hold at once, for all versions, and until the
// server ends: the file is not written.
func (s *Server) set(model string, settings map[string]string) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	next := s.settings.Load().Clone()
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if !slices.Contains(changeable, key) {
			faults = append(faults, fmt.Errorf("%s: not a setting that can be changed while running; those are %s", key, strings.Join(changeable, ", ")))
			continue
		}
		faults = append(faults, next.Set("model."+model+"."+key, settings[key], key+"="+settings[key]))
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if err := next.Validate(); err != nil {
		return err
	}
	if version := settings["default_version"]; version != "" {
		if err := s.serves(model, version); err != nil {
			return err
		}
	}
	if err := s.sched.Configure(model, policy(next.Model(model).Policy)); err != nil {
		return err
	}
	s.settings.Store(&next)
	s.gate.OptionsChanged()
	s.retiring.wake()
	return nil
}

// serves tells whether a version has a live replica; the error names those that have.
func (s *Server) serves(model, version string) error {
	var live []string
	for _, m := range s.gate.Models() {
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
	return fmt.Errorf("default_version: no container serves version %q of model %q; ready: %s", version, model, strings.Join(live, ", "))
}
