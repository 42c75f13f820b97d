package server

import (
	"fmt"
	"log/slog"
	"net/http"

	"github.com/shivad/shivad/server/admin"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/operate"
)

// ReloadFrom sets the function with which Reload loads the configuration, and one, which may be
// nil, that gets the configuration in effect after each reload. Call it before Start. Without it,
// there is nothing to reload.
func (s *Server) ReloadFrom(load func() (config.Config, error), reloaded func(config.Config)) {
	s.load, s.onReload = load, reloaded
}

// Reload loads the configuration again and applies the settings that can change while the server
// runs: see package config. It returns the settings that differ, with their values before and
// after; those that need a restart are listed apart. It waits until the processes of changed
// containers have been replaced. After an error without a result nothing has changed; it says what
// is wrong with the configuration. An error with a result names the containers that keep their old
// processes.
func (s *Server) Reload() (admin.Reloaded, error) {
	done, err := s.reload()
	if err == nil {
		s.trail.Add(access.Entry{Source: byProgram, Action: "reload", What: "configuration",
			After: access.AuditText(done)})
	}
	return done, err
}

// reload is Reload for callers that add the audit entry themselves, with its source.
func (s *Server) reload() (admin.Reloaded, error) {
	s.processes.Interrupt()
	s.reloading.Lock()
	defer s.reloading.Unlock()
	if s.load == nil {
		return admin.Reloaded{}, &operate.Error{Status: http.StatusConflict, Text: "the server was started without a configuration file: there is nothing to reload"}
	}
	if *s.phase.Load() != admin.Serving {
		return admin.Reloaded{}, &operate.Error{Status: http.StatusServiceUnavailable, Text: "the configuration cannot be reloaded while the server starts or stops"}
	}
	next, err := s.load()
	if err == nil {
		err = next.Validate()
	}
	var c config.Config
	var done admin.Reloaded
	var connections config.Share
	if err == nil {
		c, done, err = adopt(*s.settings.File(), next)
	}
	if err == nil {
		connections, err = split(c, s.log)
	}
	if err == nil {
		err = s.certificates.load(c)
	}
	if err != nil {
		return admin.Reloaded{}, &operate.Error{Status: http.StatusBadRequest,
			Text: "nothing was changed: " + err.Error()}
	}
	s.settings.Replace(c)
	s.gate.Changed() // routes apply also while the store cannot be read
	s.tracer.Sample(c.Traces.OneIn)
	s.identities.Replace(c.Declarations())
	s.gate.Newest().Permit(s.mayWait)
	s.gate.Newest().Resize(c.Limits.Latest())
	s.expect("was reloaded")
	s.containers.Review()
	s.share.Store(&connections)
	s.configure(connections.Apply(c))
	s.models.Configure(c)
	s.store.Pipelines().Configure(c.PipelineDefinitions())
	err = s.processes.Supervise(c.Supervised)
	s.containers.Review() // processes that stay may have lost a model
	s.warnOfPatterns(c)
	if s.onReload != nil {
		s.onReload(c)
	}
	if err != nil {
		return done, &operate.Error{Status: http.StatusInternalServerError,
			Text: "the configuration was reloaded, except supervised processes: " + err.Error()}
	}
	s.log.Info("configuration reloaded", "changed", keys(done.Changed), "wait for a restart", keys(done.Waiting))
	return done, nil
}

// split divides the process's descriptors among the connections that a configuration allows, and
// logs if there are fewer.
func split(c config.Config, log *slog.Logger) (config.Share, error) {
	got, all, err := c.Share()
	if err == nil && !all {
		var doors []any
		for _, d := range c.Doors() {
			if n, listens := got.Doors[d.Name]; listens {
				doors = append(doors, d.Name+".connections", n)
			}
		}
		log.Info("the limit of open files allows fewer connections or regions than configured",
			append(doors, "containers.sessions", got.Containers, "shared_memory.regions", got.Regions)...)
	}
	return got, err
}

// adopt returns the present configuration with those settings of the next one, which has been
// validated, that can take effect while the server runs.
func adopt(present config.Config, next config.Config) (config.Config, admin.Reloaded, error) {
	c, list := present.Adopt(next)
	done := admin.Reloaded{Changed: []admin.Setting{}, Waiting: []admin.Setting{}}
	for _, one := range list {
		setting := admin.Setting{Key: one.Key, Before: one.Before, After: one.After}
		if one.Restart {
			done.Waiting = append(done.Waiting, setting)
		} else {
			done.Changed = append(done.Changed, setting)
		}
	}
	if len(done.Waiting) == 0 {
		return c, done, nil // c is next, which is valid
	}
	if err := c.Validate(); err != nil {
		return c, done, fmt.Errorf("the configuration needs a restart: it is invalid with the present values of settings that only a restart changes (%v): %w",
			keys(done.Waiting), err)
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
