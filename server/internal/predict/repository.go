package predict

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/shivad/shivad/scheduler"
	"github.com/shivad/shivad/server/config"
	"github.com/shivad/shivad/server/internal/access"
	"github.com/shivad/shivad/server/internal/fault"
	"github.com/shivad/shivad/server/internal/listen"
)

// A Repository starts and stops the processes of the server's configuration. Its methods may be
// called from any goroutine.
type Repository interface {
	// Models returns the names of the models that it can start and stop, sorted.
	Models() []string
	// State returns the state of a version of one of these models; "": of any.
	State(model, version string) Condition
	// Look notices models that somebody has put where it takes models from.
	Look(ctx context.Context) error
	// Load starts the processes of a model that are not running, and returns when one of them
	// serves it, which may be at once. It fails if ctx ends, or if a process keeps ending by
	// itself.
	Load(ctx context.Context, model string) error
	// Unload drains and stops the processes of a model, and returns when they have ended.
	Unload(model string) error
}

// A Caller identifies the origin of a requested change. The zero value is the program itself, which
// has all rights.
type Caller struct {
	access.Source
	// Listener is the address that the client has connected to. nil: that of the admin door, which
	// server.repository does not restrict.
	Listener net.Addr
}

// permit returns the error for a caller who may not load and unload models. If identities are
// declared, the right to load decides, wherever the caller is; server.repository can then only
// forbid loading to all callers.
func (s *Service) permit(c Caller) error {
	if c.Listener == nil {
		return nil
	}
	switch reach := s.cfg.Reach(); {
	case reach == config.RepositoryAll, reach == config.RepositoryLocal && (Local(c.Listener) || s.view.Who().Name() != ""):
		return nil
	case reach == config.RepositoryLocal:
		return fmt.Errorf("%w: clients may not load or unload models through an endpoint that other machines can reach (%s); server.repository = \"all\" allows all clients to, and the admin API (shivactl containers) always can",
			fault.ErrPermissionDenied, c.Listener)
	}
	return fmt.Errorf("%w: clients may not load or unload models (server.repository = \"none\"); the admin API (shivactl containers) always can",
		fault.ErrPermissionDenied)
}

// Permit returns the error for a caller who may not change a model; the refusal is recorded under
// that action.
func (s *Service) Permit(c Caller, model, action string) error {
	err := s.view.Who().Check(access.Load, model)
	if err == nil {
		err = s.permit(c)
	}
	if err != nil {
		s.Refused(c.Source, action, "model", model, err)
	}
	return err
}

// Refused records that a caller was refused a change for lack of a right.
func (s *Service) Refused(by access.Source, action, what, name string, err error) {
	s.cfg.Trail.Add(access.Entry{Source: by, Action: action, What: what, Name: name, Refused: true,
		Error: fault.Text(err)})
}

// Manages reports whether the server manages the processes of a model.
func (s *Service) Manages(model string) bool { return slices.Contains(s.managedNames(), model) }

// managedNames lists the models whose processes the server manages, as far as the caller may see
// them.
func (s *Service) managedNames() []string {
	return slices.DeleteFunc(slices.Clone(s.cfg.Repository.Models()), func(name string) bool {
		return !s.view.Who().Sees(name)
	})
}

// Local reports whether a listener can be reached only from this machine.
func Local(a net.Addr) bool {
	if hostport, ok := listen.CutTLS(a.String()); ok { // of a door, or of containers
		at, err := netip.ParseAddrPort(hostport)
		return err == nil && at.Addr().IsLoopback()
	}
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.IP.IsLoopback()
	}
	return a.Network() == "unix"
}

// changed records a caller's change to a model.
func (s *Service) changed(c Caller, model, did string, err error) {
	if c.Source == (access.Source{}) {
		return
	}
	e := access.Entry{Source: c.Source, Action: did, What: "model", Name: model}
	if err != nil {
		e.Error = fault.Text(err)
	} else {
		s.cfg.Changed(c.Source.String(), "model", model, did)
	}
	s.cfg.Trail.Add(e)
}

// A State is the state of a version of a model, in the terms of the model_repository extension.
type State string

// The states.
const (
	Ready       State = "READY"       // a live replica serves it
	Unavailable State = "UNAVAILABLE" // no replica serves it
	Loading     State = "LOADING"     // no replica serves it yet: processes are starting
	Unloading   State = "UNLOADING"   // processes are being stopped
)

// A Condition is the state of a model's processes, and why they are in it.
type Condition struct {
	State State
	// Reason is for any client: nothing of the server's files, settings, or a process's output.
	Reason string
	Cause  string // for those who may load the model; "": the reason
}

// Detail returns the cause, or else the reason.
func (c Condition) Detail() string { return cmp.Or(c.Cause, c.Reason) }

// An IndexEntry is one version of a model that is served or could be.
type IndexEntry struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"` // none for applications and unregistered models
	State   State  `json:"state"`
	Reason  string `json:"reason"`
}

// Index lists every version of every registered model, every application, every route of the
// configuration, and the models that Load could start; with onlyReady, only those that are ready.
func (s *Service) Index(onlyReady bool) []IndexEntry {
	list := []IndexEntry{}
	managed := s.managedNames()
	seen := map[string]bool{}
	for _, m := range s.view.Models() {
		if s.view.Redirect(m.Name) != nil {
			continue // no request reaches it
		}
		seen[m.Name] = true
		e := IndexEntry{Name: m.Name, Version: m.Version, State: Ready}
		if !m.Ready {
			e.State, e.Reason = Unavailable, "no container of it is connected"
			if slices.Contains(managed, m.Name) {
				s.describe(&e)
			}
		}
		list = append(list, e)
	}
	for _, a := range s.view.Composites() {
		if s.view.Redirect(a.Name) != nil {
			continue
		}
		e := IndexEntry{Name: a.Name, State: Ready}
		if !a.Ready {
			e.State, e.Reason = Unavailable, "no container of the "+string(a.Kind)+"'s models is connected"
		}
		list = append(list, e)
	}
	for _, r := range s.view.Redirects() {
		e := IndexEntry{Name: r.Name, State: Ready}
		if !r.Ready {
			e.State, e.Reason = Unavailable, "no container is connected of what the route stands for, "+r.To
		}
		list = append(list, e)
		seen[r.Name] = true // a model of this name, if there is one, is hidden
	}
	for _, name := range managed {
		if !seen[name] {
			e := IndexEntry{Name: name}
			s.describe(&e)
			list = append(list, e)
		}
	}
	if onlyReady {
		list = slices.DeleteFunc(list, func(e IndexEntry) bool { return e.State != Ready })
	}
	return list
}

// describe sets the state of a model whose processes the server manages.
func (s *Service) describe(e *IndexEntry) {
	c := s.cfg.Repository.State(e.Name, e.Version)
	if e.State, e.Reason = c.State, c.Reason; s.view.Who().May(access.Load, e.Name) {
		e.Reason = c.Detail()
	}
}

// Load starts a model whose processes the server manages. Parameters of the request (another
// configuration, files) are refused: a model is configured in its container.
func (s *Service) Load(ctx context.Context, by Caller, model string, parameters []string) error {
	if err := s.Permit(by, model, "load"); err != nil {
		return err
	}
	if len(parameters) > 0 {
		return fault.Invalid("load of model %q with parameter %q: a model is configured in its container and under [model.%s], not by the request that loads it",
			model, parameters[0], model)
	}
	if !s.Manages(model) {
		if t, err := s.view.Target(model, ""); err == nil && t.Live > 0 {
			return nil // served already, no matter what started it
		}
		if err := s.cfg.Repository.Look(ctx); err != nil {
			return err
		}
	}
	if err := s.managed(model, "loaded"); err != nil {
		return err
	}
	err := s.cfg.Repository.Load(ctx, model)
	s.changed(by, model, "load", err)
	return err
}

// Unload stops a model whose processes the server manages.
func (s *Service) Unload(by Caller, model string) error {
	if err := s.Permit(by, model, "unload"); err != nil {
		return err
	}
	if err := s.managed(model, "unloaded"); err != nil {
		return err
	}
	err := s.cfg.Repository.Unload(model)
	s.changed(by, model, "unload", err)
	return err
}

// managed returns the error for a model that the server cannot start and stop.
func (s *Service) managed(model, verb string) error {
	names := s.managedNames()
	if slices.Contains(names, model) {
		return nil
	}
	if _, err := s.view.Target(model, ""); err == nil {
		return fault.Invalid("model %q cannot be %s: its containers are not processes of this server but connect by themselves; start and stop them where they run",
			model, verb)
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: no model %q: there is no [[container]] in the configuration that could be %s",
			scheduler.ErrNotFound, model, verb)
	}
	return fmt.Errorf("%w: no model %q; those that can be %s: %q", scheduler.ErrNotFound, model, verb, names)
}
