package server

import (
	"context"
	"fmt"
	"time"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/internal/apps"
	"github.com/shivad/shivad/server/state"
)

// openState opens the store, and the registry of the applications in it.
func (s *Server) openState() (err error) {
	opts := state.Options{Namespace: s.cfg.State.Namespace, Required: s.cfg.State.Required, Logger: s.log}
	if s.cfg.State.At == "" {
		s.store, err = state.NewMemory(opts)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s.store, err = state.Open(ctx, s.cfg.State.At, opts)
	}
	if err != nil {
		return err
	}
	s.readSettings()
	s.watching.Go(s.followSettings) // ends when the server stops
	s.apps = apps.Open(apps.Config{
		Store: s.store,
		Changed: func() {
			s.gate.ApplicationsChanged()
			s.retiring.wake() // a version may be linked no longer
		},
		Models: func() (names []string) {
			for _, m := range s.gate.Models() {
				names = append(names, m.Name)
			}
			return names
		},
		Fits:  s.gate.Fits,
		Users: s.cfg.State.Users,
		Log:   s.log,
	})
	s.gate.AttachApplications(s.apps)
	return nil
}

// closeState ends what openState has begun.
func (s *Server) closeState() error {
	if s.apps != nil {
		s.apps.Close()
	}
	if s.store == nil {
		return nil
	}
	return s.store.Close()
}

// admit refuses a model by the name of an application that links to others as well: requests for the one would go to the other.
func (s *Server) admit(id scheduler.ModelID) error {
	if a := s.apps.App(id.Name); a != nil && !a.Only(id.Name) {
		return fmt.Errorf("there is an application %q, which links to %q: give the model another name, or delete the application", a.Name, a.Models)
	}
	return nil
}
