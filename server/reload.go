package server

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
)

// ReloadFrom says where Reload takes the configuration from, and who wants to know what holds from then on. It is called
// before Start. Without it there is nothing to reload.
func (s *Server) ReloadFrom(load func() (config.Config, error), reloaded func(config.Config)) {
	s.load, s.reloaded = load, reloaded
}

// Reload reads the configuration again and makes hold what can change while the server runs: see package config. What
// waits for a restart is among the settings that are returned, each with its values before and after. After an error
// nothing has changed; an *admin.Error says what is wrong with the configuration.
func (s *Server) Reload() (admin.Reloaded, error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if s.load == nil {
		return admin.Reloaded{}, &admin.Error{Status: http.StatusConflict, Text: "the server was started without a configuration file: there is nothing to reload"}
	}
	if *s.state.Load() != admin.Serving {
		return admin.Reloaded{}, &admin.Error{Status: http.StatusServiceUnavailable, Text: "the server is starting or stopping, and reloads nothing"}
	}
	next, err := s.load()
	if err == nil {
		err = next.Validate()
	}
	var c config.Config
	var done admin.Reloaded
	if err == nil {
		c, done, err = s.adopt(next)
	}
	if err != nil {
		return admin.Reloaded{}, &admin.Error{Status: http.StatusBadRequest, Text: "nothing was changed: " + err.Error()}
	}
	s.setting.Lock()
	before := s.base.Swap(&c)
	s.setting.Unlock()
	s.readSettings()
	if err := s.superviseAgain(before.Supervised, c.Supervised); err != nil {
		return done, &admin.Error{Status: http.StatusInternalServerError, Text: "reloaded, but for processes: " + err.Error()}
	}
	if s.reloaded != nil {
		s.reloaded(c)
	}
	s.log.Info("configuration reloaded", "changed", keys(done.Changed), "wait for a restart", keys(done.Waiting))
	return done, nil
}

// adopt makes the configuration that can hold now of the one that was loaded.
func (s *Server) adopt(next config.Config) (config.Config, admin.Reloaded, error) {
	c, list := s.base.Load().Adopt(next)
	done := admin.Reloaded{Changed: []admin.Setting{}, Waiting: []admin.Setting{}}
	for _, one := range list {
		setting := admin.Setting{Key: one.Key, Before: one.Before, After: one.After}
		if one.Restart {
			done.Waiting = append(done.Waiting, setting)
		} else {
			done.Changed = append(done.Changed, setting)
		}
	}
	if err := c.Validate(); err != nil {
		return c, done, fmt.Errorf("it holds only after a restart, beside settings that cannot change until then (%v): %w", keys(done.Waiting), err)
	}
	if err := policy(c.Defaults).Validate(); err != nil {
		return c, done, err
	}
	for name, m := range c.Models {
		if err := policy(m.Policy).Validate(); err != nil {
			return c, done, fmt.Errorf("model %q: %w", name, err)
		}
	}
	return c, done, nil
}

func keys(list []admin.Setting) []string {
	names := make([]string, len(list))
	for i, one := range list {
		names[i] = one.Key
	}
	return names
}

// superviseAgain ends the processes of containers that have gone or changed, and starts those that are new or have. One
// that was stopped stays so if only its settings have changed.
func (s *Server) superviseAgain(before, now []config.Container) error {
	same := func(c config.Container) func(config.Container) bool {
		return func(other config.Container) bool { return reflect.DeepEqual(c, other) }
	}
	s.opening.RLock()
	processes := slices.Clone(s.processes)
	s.opening.RUnlock()
	faults := make([]error, len(processes))
	unloaded := map[string]bool{}
	kept := []*process{}
	var ending sync.WaitGroup
	for i, p := range processes {
		if slices.ContainsFunc(now, same(p.settings)) {
			kept = append(kept, p)
			continue
		}
		p.mu.Lock()
		unloaded[p.settings.Name] = p.supervisor == nil
		p.mu.Unlock()
		ending.Go(func() { faults[i] = p.stop() })
	}
	ending.Wait()
	var fresh []*process
	for _, c := range now {
		if c.Address != "" || slices.ContainsFunc(before, same(c)) {
			continue
		}
		p := &process{server: s, settings: c}
		if kept = append(kept, p); !unloaded[c.Name] {
			fresh = append(fresh, p)
		}
	}
	s.opening.Lock()
	s.processes = kept
	s.opening.Unlock()
	for _, p := range fresh {
		faults = append(faults, p.start())
	}
	return errors.Join(faults...)
}
